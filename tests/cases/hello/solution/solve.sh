echo 'print("Hello, world!")' > hello.py
