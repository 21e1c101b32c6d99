#!/usr/bin/env python3
"""Only src/os asks the kernel for memory; the interposer, whose job these calls are, aside.

    kernel_calls.py SOURCE_ROOT ARCHIVE
    kernel_calls.py --self-test

Looks at the symbols that the objects of the library want, and at the source of everything below src, since system calls
by number do not show in an object and not every folder is in the library.
"""
import re
import sys
import tempfile
from pathlib import Path

from common import c_files, expect, line_of, make_archive, make_tree, read_archive, report, strip

EXEMPT = ['os', 'preload']

CALLS = {
    'mmap', 'mmap64', 'munmap', 'mremap', 'remap_file_pages', 'mprotect', 'pkey_mprotect', 'madvise', 'posix_madvise',
    'process_madvise', 'memfd_create', 'memfd_secret', 'shm_open', 'fallocate', 'fallocate64', 'posix_fallocate',
    'posix_fallocate64', 'userfaultfd', 'shmget', 'shmat', 'shmdt', 'shmctl', 'mlock', 'mlock2', 'mlockall', 'munlock',
    'munlockall', 'mbind', 'set_mempolicy', 'move_pages', 'migrate_pages', 'brk', 'sbrk',
}

# A name on its own: neither a member (ops->mmap, .mmap = ...) nor a part of a longer one.
NAME = re.compile(r'(?<![\w.])(?<!->)(?:__|SYS_|__NR_)?(' + '|'.join(sorted(CALLS)) + r')\b')
SYSCALL = re.compile(r'(?<![\w.])(?<!->)syscall\s*\(\s*([^,()]*)')
# A number that can be read: the kernel's, or this project's own with a reader's help.
NAMED_NUMBER = re.compile(r'(SYS|__NR)_\w+')


def check_source(root):
    violations = []
    for path in c_files(root / 'src'):
        if path.relative_to(root / 'src').parts[0] in EXEMPT:
            continue
        name = path.relative_to(root)
        text = strip(path.read_text(encoding='utf-8'))
        for match in NAME.finditer(text):
            violations.append(f'{name}:{line_of(text, match.start())}: {match.group()}: only src/os asks for memory')
        for match in SYSCALL.finditer(text):
            number = match.group(1).strip()
            if not NAMED_NUMBER.fullmatch(number):
                violations.append(f'{name}:{line_of(text, match.start())}: syscall({number}): '
                                  'name the call as SYS_..., so that it can be checked')
    return violations


def check_objects(objects):
    violations = []
    for obj in objects:
        if any(obj.name.startswith(f'src_{folder}_') for folder in EXEMPT):
            continue
        for symbol in sorted(obj.undefined):
            if symbol.lstrip('_') in CALLS:
                violations.append(f'{obj.name}: wants {symbol}: only src/os asks for memory')
    return violations


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        make_tree(folder, {
            'src/os/linux.c': 'void *p = mmap(0);\n',
            'src/preload/hook.c': 'int x = munmap(0, 0);\n',
            'src/pool/pool.c': '/* mmap(0) */ const char *s = "madvise"; // mlock\n'
                               'int a = os->ops->munmap(b); int c = hp_mmap(d); syscall(SYS_futex, e);\n'
                               'struct ops o = {.mmap = f};\n',
        })
        root = Path(folder)
        expect(check_source(root))
        make_tree(folder, {
            'src/pool/bad.c': '\nint a = madvise(b, c, d);\nvoid *(*f)(void) = mmap;\n',
            'src/file/bad.c': 'syscall(SYS_fallocate, 1);\nsyscall(\n 9, 1);\nsyscall(number);\n',
        })
        expect(check_source(root), 'src/pool/bad.c:2: madvise', 'src/pool/bad.c:3: mmap',
               'src/file/bad.c:1: SYS_fallocate', 'src/file/bad.c:2: syscall(9)', 'src/file/bad.c:4: syscall(number)')
    sources = {
        'src_os_linux.c': 'int munmap(); int f(void) { return munmap(); }',
        'src_pool_pool.c': 'int f(); int read(); int g(void) { return f() + read(); }',
    }
    expect(check_objects(make_archive(sources)))
    sources['src_pool_bad.c'] = 'int mprotect(); int h(void) { return mprotect(); }'
    expect(check_objects(make_archive(sources)), 'src_pool_bad.c.o: wants mprotect')


if sys.argv[1] == '--self-test':
    self_test()
else:
    report(check_source(Path(sys.argv[1])) + check_objects(read_archive(sys.argv[2])))
