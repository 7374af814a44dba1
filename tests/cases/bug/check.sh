here=$(dirname "$0")
passes() { [ "$("$@" 2>&1 | tail -n 1)" = OK ]; }
passes python3 - < "$here/start/test_receipt.py" || { echo "the tests do not pass"; exit 1; }
passes python3 - < "$here/hidden.py" || { echo "money.py is not right for all amounts"; exit 1; }
cmp -s test_receipt.py "$here/start/test_receipt.py" || { echo "test_receipt.py was changed"; exit 1; }
