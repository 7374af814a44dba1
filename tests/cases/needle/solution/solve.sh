sed -n 's/.* id=\([0-9a-f]*\) .* status=500 .*/\1/p' app.log > found.txt
