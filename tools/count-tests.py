#!/usr/bin/env python3
"""Counts one test log of meson (meson-logs/testlog.json, one JSON object a line).

Prints "passed failed skipped". A log that is not there or holds no test counts as one failure, since a run that proved
nothing must not look like success.
"""
import json
import sys

PASSED = {'OK', 'EXPECTEDFAIL'}
SKIPPED = {'SKIP', 'IGNORED'}


def count(lines):
    passed = failed = skipped = 0
    for line in lines:
        if not line.strip():
            continue
        result = json.loads(line)['result']
        if result in PASSED:
            passed += 1
        elif result in SKIPPED:
            skipped += 1
        else:  # FAIL, TIMEOUT, INTERRUPT, ERROR, UNEXPECTEDPASS, and what a later meson may add
            failed += 1
    return passed, failed, skipped


def main():
    try:
        with open(sys.argv[1], encoding='utf-8') as log:
            passed, failed, skipped = count(log)
    except (OSError, ValueError, KeyError) as error:
        print(f'no usable test log: {error}', file=sys.stderr)
        passed, failed, skipped = 0, 1, 0
    if passed + failed + skipped == 0:
        print('no test ran', file=sys.stderr)
        failed = 1
    print(passed, failed, skipped)


if __name__ == '__main__':
    main()
