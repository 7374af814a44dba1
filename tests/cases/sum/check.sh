tr -d ', .\n' < "$1" | grep -q 10000 || { echo "the answer is not 10000"; exit 1; }
diff -r -x __pycache__ "$(dirname "$0")/start" . > /dev/null || { echo "the files are not as before"; exit 1; }
