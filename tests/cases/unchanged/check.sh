grep -q 8471 "$1" || { echo "the answer does not name the port, 8471"; exit 1; }
grep -q 'defaults\.py' "$1" || { echo "the answer does not name the file, defaults.py"; exit 1; }
diff -r -x __pycache__ "$(dirname "$0")/start" . > /dev/null || { echo "the files are not as before"; exit 1; }
