#!/usr/bin/env python3
"""The functions that the public header declares are those that the version script lists and the library exports.

    exports.py HEADER MAP [LIBRARY]
    exports.py --self-test
"""
import re
import subprocess
import sys
from pathlib import Path

from common import expect, report, strip


def declared(header):
    """Names of the functions declared in a header."""
    text = strip(header)
    text = re.sub(r'^[ \t]*#(?:[^\\\n]|\\.|\\\n)*', '', text, flags=re.MULTILINE)
    text = re.sub(r'extern\s*""\s*\{', '', text)
    while re.search(r'\{[^{}]*\}', text):
        text = re.sub(r'\{[^{}]*\}', '', text)
    names = set()
    for statement in text.split(';'):
        match = re.search(r'\b(\w+)\s*\(', statement)
        if match and not re.match(r'\s*typedef\b', statement):
            names.add(match.group(1))
    return names


def listed(script):
    """Names in the global sections of a version script."""
    names = set()
    for section in re.findall(r'global:(.*?)(?:local:|\})', strip(script), re.DOTALL):
        names |= set(re.findall(r'[^\s;]+', section))
    return names


def exported(library):
    listing = subprocess.run(['nm', '-D', '-P', '--defined-only', library], check=True, capture_output=True,
                             text=True).stdout
    symbols = [line.split() for line in listing.splitlines()]
    # A is the version's own name.
    return {symbol[0].split('@')[0] for symbol in symbols if symbol[1] != 'A'}


def check(header, script, symbols=None):
    functions, names = declared(header), listed(script)
    violations = [f'{name}: declared in the header, not in the version script' for name in sorted(functions - names)]
    violations += [f'{name}: in the version script, not declared in the header' for name in sorted(names - functions)]
    if symbols is not None:
        violations += [f'{name}: in the version script, not in the library' for name in sorted(names - symbols)]
        violations += [f'{name}: exported, not in the version script' for name in sorted(symbols - names)]
    return violations


def self_test():
    header = '''
        #define HP_CALL(x) hp_macro(x)
        #ifdef __cplusplus
        extern "C" {
        #endif
        /* hp_comment(); */
        typedef void (*hp_log_fn)(int level);
        struct s { void (*member)(int); };
        const char *hp_name(int x);
        int hp_map(void *address,
                   int y);
        #ifdef __cplusplus
        }
        #endif
    '''
    script = 'HUGEPOOL_0.1 {\n\tglobal:\n\t\thp_name;\n\t\thp_map;\n\tlocal:\n\t\t*;\n};\n'
    expect(check(header, script, {'hp_name', 'hp_map'}))
    expect(check(header, script.replace('hp_map', 'hp_gone')), 'hp_map: declared', 'hp_gone: in the version script')
    expect(check(header, script, {'hp_name', 'secret'}), 'hp_map: in the version script', 'secret: exported')


if sys.argv[1] == '--self-test':
    self_test()
else:
    report(check(Path(sys.argv[1]).read_text(encoding='utf-8'), Path(sys.argv[2]).read_text(encoding='utf-8'),
                 exported(sys.argv[3]) if len(sys.argv) > 3 else None))
