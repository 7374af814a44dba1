here=$(dirname "$0")
passes() { [ "$("$@" 2>&1 | tail -n 1)" = OK ]; }
passes python3 - < "$here/start/test_kit.py" || { echo "the tests do not pass"; exit 1; }
passes python3 - < "$here/hidden.py" || { echo "a module of kit/ does not do what its docstrings say"; exit 1; }
cmp -s test_kit.py "$here/start/test_kit.py" || { echo "test_kit.py was changed"; exit 1; }
for module in brackets cache leap merging pages table tags version; do
    grep -q "$module" faults.txt 2> /dev/null || { echo "faults.txt does not name $module"; exit 1; }
done
