git merge -q tax > /dev/null || true
cp "$(dirname "$0")"/*.py .
git add price.py test_price.py && git commit -q -m "Merge tax"
