here=$(cd "$(dirname "$0")" && pwd)
wanted=$(mktemp -d)
trap 'rm -rf "$wanted"' EXIT
(cd "$wanted" && python3 "$here/make.py" 45)
cmp -s settings.ini "$wanted/settings.ini" || { echo "settings.ini is not, byte by byte, what it should be"; exit 1; }
