printf 'harbour\n4080\nyes\nyes\n' | python3 setup_site.py
