here=$(dirname "$0")
python3 "$here/compare.py" "$here/start" 2>&1 || exit 1
[ "$(python3 -m unittest 2>&1 | tail -n 1)" = OK ] || { echo "the tests do not pass"; exit 1; }
