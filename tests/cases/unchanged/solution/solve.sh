echo "Port 8471, the production profile of defaults.py; the README is wrong about it." > "$1"
