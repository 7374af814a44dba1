here=$(cd "$(dirname "$0")" && pwd)
wanted=$(mktemp -d)
trap 'rm -rf "$wanted"' EXIT
[ -f site.json ] || { echo "there is no site.json"; exit 1; }
(cd "$wanted" && printf 'harbour\n4080\nyes\nyes\n' | python3 "$here/start/setup_site.py" > /dev/null)
cmp -s site.json "$wanted/site.json" || { echo "site.json is not what the script makes of these answers"; exit 1; }
cmp -s setup_site.py "$here/start/setup_site.py" || { echo "setup_site.py was changed"; exit 1; }
