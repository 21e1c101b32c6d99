#!/usr/bin/env python3
"""The code that the SIGSEGV handler reaches calls only async-signal-safe functions.

    signal_safe.py ARCHIVE
    signal_safe.py --self-test

Reads the machine code of the library: from the functions where faults enter it follows every call and every address of a
function that is taken, and compares what nobody in the library defines with a list.

Not for builds with a sanitizer, whose runtime is called from everywhere.
"""
import re
import sys

from common import expect, make_archive, read_functions, report

# Where faults enter: (object, function). The backend is reached through a table of operations, a pointer that no call
# shows, and so its operations that os.h marks [signal] are named here; so are the zeroing methods.
ROOTS = [
    (r'src_space_handler\.c\.o', r'on_sigsegv|hp_handle_fault'),
    (r'src_os_linux\.c\.o', r'linux_(map|unmap|move|reserve|end|zero)'),
    # Marked [signal] too; faults beyond a file's end come here.
    (r'src_space_mapping\.c\.o', r'hp_mapping_cut'),
    (r'src_os_zero\.c\.o', r'zero_.*'),
    # The first use of hugepool in a fork child may be a fault.
    (r'src_space_fork\.c\.o', r'take_over|adopt_mapping'),
    # A fault that finds the owner of a lock dead repairs what the lock protects.
    (r'src_pool_repair\.c\.o', r'repair_(extents|cache)'),
    (r'src_file_repair\.c\.o', r'repair_(file|mappings)'),
]

ALLOWED = set('''
    abort raise _exit kill
    sigaction sigprocmask pthread_sigmask pthread_kill sigaltstack
    sigemptyset sigfillset sigaddset sigdelset sigismember
    read write open open64 openat openat64 close pread pread64 pwrite pwrite64 lseek lseek64 fstat fstat64 fcntl fcntl64
    ftruncate ftruncate64 poll
    getpid gettid getppid clock_gettime uname

    memcpy memmove memset memcmp memchr stpcpy strcat strchr strcmp strcpy strcspn strlen strncat strncmp strncpy
    strnlen strpbrk strrchr strspn strstr
    __memcpy_chk __memmove_chk __memset_chk __read_chk
'''.split())

# Not on POSIX's list, but safe in glibc on Linux.
ALLOWED |= set('''
    mmap mmap64 munmap mremap madvise mprotect memfd_create fallocate fallocate64
    syscall sched_getcpu sched_yield
    __errno_location pthread_self
    __stack_chk_fail _GLOBAL_OFFSET_TABLE_ __popcountdi2 __cpu_model __cpu_features2 __cpu_indicator_init
'''.split())
# mmap to fallocate, syscall, sched_yield: the bare system call and errno. sched_getcpu: reads the thread's restartable
# sequence, or asks the vDSO. __errno_location, pthread_self: addresses in the thread's static TLS. The last line: what
# the compiler adds; __cpu_*: filled in before main.
#
# Deliberately absent: __tls_get_addr, which may allocate. Wanting it means TLS that is not initial-exec.

# A thread whose first contact with hugepool is a fault takes a slot, and holds the slot's robust mutex from then on.
# trylock of a robust process-shared mutex never waits. It changes the thread's own robust list, which no interrupted
# code of ours can be in the middle of changing, since all our other lock calls are made with signals blocked.
# consistent only writes to a mutex that the caller has just got; unlock gives back what trylock has just got, by a waiter
# that asks whether the thread of a slot is alive.
ALLOWED |= {'pthread_mutex_trylock', 'pthread_mutex_consistent', 'pthread_mutex_unlock'}

# The linker's: where the list of places that take locks begins and ends.
ALLOWED |= {'__start_hp_lock_points', '__stop_hp_lock_points'}


def check(functions, roots=None):
    violations = []
    chains = {}  # a function that was reached, and those that led there
    queue = []

    def reach(function, chain):
        if function not in chains:
            chains[function] = chain + [function.name]
            queue.append(function)

    exported = {}
    for function in functions:
        exported.setdefault(function.name, function)
    local = {(function.object, function.name): function for function in functions}

    for object_pattern, name_pattern in ROOTS if roots is None else roots:
        found = [function for function in functions
                 if re.fullmatch(object_pattern, function.object) and re.fullmatch(name_pattern, function.name)]
        if not found:
            violations.append(f'no function {name_pattern} in an object {object_pattern}: where do faults enter now?')
        for function in found:
            reach(function, [])

    while queue:
        function = queue.pop(0)
        for name in sorted(function.uses):
            target = local.get((function.object, name)) or exported.get(name)
            if target:
                reach(target, chains[function])
            elif name in function.wanted and name not in ALLOWED:
                violations.append(f'{" -> ".join(chains[function])}: not async-signal-safe, or not known to be: {name}')
    return violations


def self_test():
    roots = [(r'src_space_handler\.c\.o', 'enter'), (r'src_os_linux\.c\.o', 'map')]
    sources = {
        'src_space_handler.c': 'int find(); static void step(void) { find(); } void enter(void) { step(); }',
        'src_pool_frames.c': 'int write(); void *malloc(); int find(void) { return write(); }'
                             'void *create(void) { return malloc(); }',
        'src_os_linux.c': 'int syscall(); int map(void) { return syscall(); } int open_it(void) { return fopen(); }',
    }
    expect(check(make_archive(sources, read_functions), roots))
    sources['src_pool_frames.c'] = ('void *create(); int find(void) { return create(); }'
                                    'static void *make(void) { return malloc(); }'
                                    'void *create(void) { void *(*how)(void) = make; return how(); }')
    sources['src_os_linux.c'] = 'int printf(); int map(void) { return printf(); }'
    expect(check(make_archive(sources, read_functions), roots),
           'enter -> step -> find -> create -> make: not async-signal-safe, or not known to be: malloc',
           'map: not async-signal-safe, or not known to be: printf')
    # TLS by the general model calls __tls_get_addr.
    sources = {'src_os_linux.c': '__thread int slot; int map(void) { return slot; }'}
    expect(check(make_archive(sources, read_functions), roots[1:]), 'not known to be: __tls_get_addr')
    expect(check(make_archive({'src_base_log.c': 'int log(void) { return 0; }'}, read_functions), roots[1:]),
           'no function map')


if sys.argv[1] == '--self-test':
    self_test()
else:
    report(check(read_functions(sys.argv[1])))
