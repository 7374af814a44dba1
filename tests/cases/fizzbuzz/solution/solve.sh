cp "$(dirname "$0")"/*.py .
