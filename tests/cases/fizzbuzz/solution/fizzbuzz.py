def fizzbuzz(n):
    if n < 0:
        raise ValueError("n must not be negative")
    return ["Fizz" * (i % 3 == 0) + "Buzz" * (i % 5 == 0) or str(i) for i in range(1, n + 1)]
