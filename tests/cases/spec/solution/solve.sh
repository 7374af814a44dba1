cp "$(dirname "$0")"/*.py .
echo "Done: todo.py and test_todo.py, all of spec.txt. Next: nothing." > plan.txt
