[ -f found.txt ] || { echo "there is no found.txt"; exit 1; }
[ "$(tr -d '[:space:]' < found.txt)" = 0550ef66 ] || { echo "found.txt does not have the id"; exit 1; }
[ "$(wc -c < app.log)" -eq 52471760 ] || { echo "app.log was changed"; exit 1; }
