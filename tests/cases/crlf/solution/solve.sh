python3 "$(dirname "$0")/../make.py" 45
