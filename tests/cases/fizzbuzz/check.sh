here=$(dirname "$0")
passes() { [ "$("$@" 2>&1 | tail -n 1)" = OK ]; }
[ -f fizzbuzz.py ] && [ -f test_fizzbuzz.py ] || { echo "fizzbuzz.py or test_fizzbuzz.py is missing"; exit 1; }
passes python3 - < "$here/hidden.py" || { echo "fizzbuzz.py is wrong"; exit 1; }
passes python3 -m unittest test_fizzbuzz || { echo "test_fizzbuzz.py does not pass"; exit 1; }
broken=$(mktemp -d)
trap 'rm -rf "$broken"' EXIT
cp test_fizzbuzz.py "$broken" && cp "$here/wrong.py" "$broken/fizzbuzz.py" && cd "$broken"
! passes python3 -m unittest test_fizzbuzz || { echo "test_fizzbuzz.py passes with a wrong fizzbuzz.py"; exit 1; }
