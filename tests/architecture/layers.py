#!/usr/bin/env python3
"""Folders include only downwards.

    layers.py SOURCE_ROOT
    layers.py --self-test
"""
import re
import sys
import tempfile
from pathlib import Path

from common import c_files, expect, line_of, make_tree, report, strip

# The layers, the ground first: each may include from itself and from those before it.
LAYERS = ['base', 'os', 'sync', 'arena', 'wire', 'pool', 'file', 'space', 'collapse', 'vmap', 'library', 'service']

# Those that stand beside the layers: what they may include besides themselves; a folder or a single header.
# The bench has the locks and the page-cache index too: it measures them by themselves, which nothing public lets it do.
# It makes a pool on the backend without memory, to see what the books of a terabyte cost where there is none.
BESIDE = {
    'preload': ['base', 'os', 'wire'],
    'bench': ['base', 'os/os.h', 'os/probe.h', 'os/sim.h', 'sync', 'arena/pages.h', 'file/index.h', 'library/library.h'],
    'cli': ['base', 'os/os.h', 'os/probe.h'],
}

PUBLIC = 'hugepool.h'

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">\n]+)[">]', re.MULTILINE)


def allowed_for(folder):
    """What a folder may include, or None for a folder that nobody has given a place."""
    if folder in LAYERS:
        return LAYERS[:LAYERS.index(folder) + 1]
    if folder in BESIDE:
        return [folder] + BESIDE[folder]
    return None


def violation_of(root, folder, quoted, header):
    """What is wrong with one include, or None."""
    if header == PUBLIC:
        return None
    internal = (root / 'src' / header).exists()
    if not quoted and not internal:
        return None
    if folder is None:  # the public header
        return 'the public header includes only what the system has'
    if header.endswith('.c'):
        return 'a .c file is not to be included'
    first, _, rest = header.partition('/')
    if folder == 'bench' and not rest:
        return None  # bench is not below src, where the compiler looks: its own headers are found beside the file
    if not quoted or not rest or '..' in header.split('/'):
        return f'internal headers are written "folder/file.h", relative to src; or "{PUBLIC}"'
    allowed = allowed_for(folder)
    if first in allowed or header in allowed:
        return None
    return f'{folder} may include from {", ".join(allowed)}, and {PUBLIC}'


def check(root):
    files = [(None, path) for path in c_files(root / 'include')]
    for path in c_files(root / 'src'):
        files.append((path.relative_to(root / 'src').parts[0], path))
    files += [('bench', path) for path in c_files(root / 'bench')]

    violations = []
    for folder, path in files:
        name = path.relative_to(root)
        if folder is not None and allowed_for(folder) is None:
            violations.append(f'{name}:1: {folder} is no layer; give it a place in {Path(__file__).name}')
            continue
        text = strip(path.read_text(encoding='utf-8'), strings=False)
        for match in INCLUDE.finditer(text):
            problem = violation_of(root, folder, match.group(1) == '"', match.group(2))
            if problem:
                line = line_of(text, match.start(1))
                violations.append(f'{name}:{line}: includes {match.group(2)}: {problem}')
    return violations


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        make_tree(folder, {
            'include/hugepool.h': '#include <stdint.h>\n',
            'src/base/units.h': '#include "hugepool.h"\n#include <stdint.h>\n',
            'src/os/os.h': '/*\n#include "pool/pool.h"\n*/\n// #include "pool/pool.h"\n#include "base/units.h"\n',
            'src/os/probe.h': '',
            'src/pool/pool.h': '#include "os/os.h"\n',
            'src/preload/hook.c': '#include "os/os.h"\n',
            'src/cli/main.c': '#include "cli/cli.h"\n#include "os/probe.h"\n',
            'bench/bench.h': '#include "base/units.h"\n',
            'bench/engine.c': '#include "bench.h"\n',
        })
        root = Path(folder)
        expect(check(root))
        make_tree(folder, {
            'include/hugepool.h': '#include "base/units.h"\n',
            'src/os/linux.c': '\n#include "pool/pool.h"\n',
            'src/pool/pool.c': '#include "pool.h"\n',
            'src/pool/frames.c': '#include "../os/os.h"\n',
            'src/pool/stats.c': '#include <os/os.h>\n',
            'src/pool/all.c': '#include "pool/pool.c"\n',
            'src/preload/bad.c': '#  include "pool/pool.h"\n',
            'src/cli/bad.c': '#include "pool/pool.h"\n#include "../bench/bench.h"\n',
            'src/cli/bad_os.c': '#include "os/sim.h"\n',
            'bench/bad.c': '#include "pool/pool.h"\n',
            'src/misc/other.c': '',
        })
        expect(check(root), 'include/hugepool.h:1:', 'src/os/linux.c:2:', 'src/pool/pool.c:1:', 'src/pool/frames.c:1:',
               'src/pool/stats.c:1:', 'src/pool/all.c:1:', 'src/preload/bad.c:1:', 'src/cli/bad.c:1:',
               'src/cli/bad.c:2:', 'src/cli/bad_os.c:1:', 'bench/bad.c:1:', 'src/misc/other.c:1: misc is no layer')


if sys.argv[1] == '--self-test':
    self_test()
else:
    report(check(Path(sys.argv[1])))
