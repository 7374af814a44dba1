here=$(dirname "$0")
[ -f served.log ] || { echo "the server was never started"; exit 1; }
if python3 "$here/locked.py"; then
    kill "$(sed -n 's/^pid //p' served.log | tail -n 1)"
    echo "the server was still running"
    exit 1
fi
[ -f receipt.txt ] || { echo "there is no receipt.txt"; exit 1; }
receipt=$(tr -d '[:space:]' < receipt.txt)
grep -qx "/stock/bolts ${receipt:-none}" served.log || { echo "receipt.txt does not have what the server gave"; exit 1; }
cmp -s server.py "$here/start/server.py" || { echo "server.py was changed"; exit 1; }
