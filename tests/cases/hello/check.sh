[ -f hello.py ] || { echo "there is no hello.py"; exit 1; }
[ "$(python3 hello.py 2>&1)" = "Hello, world!" ] || { echo "hello.py does not print Hello, world!"; exit 1; }
