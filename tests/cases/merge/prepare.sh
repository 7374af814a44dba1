set -e
here=$(cd "$(dirname "$0")" && pwd)
git init -q
git symbolic-ref HEAD refs/heads/main
git config user.name Merger
git config user.email merger@example.org
git config commit.gpgSign false
git config core.hooksPath /dev/null
echo "__pycache__/" > .git/info/exclude
commit() { git add . && git commit -q -m "$1"; }
commit "Prices"
git checkout -q -b tax
cp "$here/tax.py" price.py
sed 's/    def test_show/    def test_tax(self):\n        self.assertEqual(price(1000, tax=19), 1190)\n\n&/' \
    "$here/start/test_price.py" > test_price.py
commit "Prices with tax"
git checkout -q main
cp "$here/main.py" price.py
sed 's/    def test_show/    def test_many(self):\n        self.assertEqual(price(1000, number=11), 10000)\n\n&/' \
    "$here/start/test_price.py" > test_price.py
commit "Prices of many, and currencies"
