here=$(dirname "$0")
passes() { [ "$("$@" 2>&1 | tail -n 1)" = OK ]; }
[ -f todo.py ] && [ -f test_todo.py ] || { echo "todo.py or test_todo.py is missing"; exit 1; }
passes python3 - < "$here/hidden.py" || { echo "todo.py does not do what spec.txt says"; exit 1; }
passes python3 -m unittest || { echo "its own tests do not pass"; exit 1; }
cmp -s spec.txt "$here/start/spec.txt" || { echo "spec.txt was changed"; exit 1; }
grep -q . plan.txt 2> /dev/null || { echo "there is no plan.txt, or nothing in it"; exit 1; }
broken=$(mktemp -d)
trap 'rm -rf "$broken"' EXIT
cp ./*.py "$broken" && echo 'print("1")' > "$broken/todo.py" && cd "$broken"
! passes python3 -m unittest || { echo "its own tests pass with a todo.py that does nothing"; exit 1; }
