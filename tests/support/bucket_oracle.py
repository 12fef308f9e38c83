"""Batches of rows of similar length in plain Python, row by row."""


def planned(buckets, lengths):
    """Batches as (number of the bucket, rows), without fillers."""
    widths, sizes = buckets.widths.tolist(), buckets.sizes.tolist()
    waiting = {number: [] for number in range(len(widths))}
    batches = []
    for row, length in enumerate(lengths):
        number = min(n for n, width in enumerate(widths) if width >= length)
        waiting[number].append(row)
        if len(waiting[number]) == sizes[number]:
            batches.append((number, waiting[number]))
            waiting[number] = []
    left = [(number, row) for number in reversed(waiting) for row in waiting[number]]
    while left:
        number = left[0][0]
        batches.append((number, [row for _, row in left[: sizes[number]]]))
        left = left[sizes[number] :]
    return batches
