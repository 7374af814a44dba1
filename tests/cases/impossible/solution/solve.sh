echo "This cannot be done: the tests want 1 and 0 for rounded(50). Which of them holds?" > "$1"
