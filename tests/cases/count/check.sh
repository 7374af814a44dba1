[ -f count.txt ] || { echo "there is no count.txt"; exit 1; }
[ "$(tr -d '[:space:]' < count.txt)" = 6 ] || { echo "count.txt does not say 6"; exit 1; }
