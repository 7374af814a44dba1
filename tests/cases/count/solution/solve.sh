find notes -name '*.txt' -exec grep -hiw apple {} + | wc -l > count.txt
