"""What the architecture tests share: C source without its comments, objects of an archive, reporting."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_TOKENS = re.compile(r'//(?:[^\\\n]|\\.|\\\n)*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def strip(text, strings=True):
    """Source with comments, and if asked string contents, blanked out; line numbers stay."""
    def blank(match):
        token = match.group()
        if token.startswith('/'):
            return ' ' + '\n' * token.count('\n')
        return '""' if strings else token
    return _TOKENS.sub(blank, text)


def c_files(folder):
    return sorted(path for path in folder.rglob('*') if path.suffix in ('.c', '.h'))


def line_of(text, position):
    return text.count('\n', 0, position) + 1


class Object:
    """One member of an archive: the symbols it defines for others, and those it wants."""

    def __init__(self, name):
        self.name = name
        self.defined = set()
        self.undefined = set()


def read_archive(path):
    """The objects of a static library, thin or not, as nm sees them."""
    listing = subprocess.run(['nm', '-P', str(path)], check=True, capture_output=True, text=True).stdout
    objects = []
    for line in listing.splitlines():
        header = re.fullmatch(r'.*\[(?:.*/)?([^/]+)\]:', line)
        if header:
            objects.append(Object(header.group(1)))
            continue
        fields = line.split()
        if len(fields) < 2 or not objects:
            continue
        symbol, kind = fields[0].split('@')[0], fields[1]
        if kind in 'Uwv':
            objects[-1].undefined.add(symbol)
        elif kind.isupper():
            objects[-1].defined.add(symbol)
    return objects


class Function:
    """A function of an archive: what its code refers to, and which of that nobody in the archive defines."""

    def __init__(self, object_name, name):
        self.object = object_name
        self.name = name
        self.uses = set()
        self.wanted = set()


def read_functions(path):
    """The functions of a static library, from its machine code and relocations."""
    objects = read_archive(path)
    defined = set().union(*(obj.defined for obj in objects))
    undefined = {obj.name: obj.undefined - defined for obj in objects}
    listing = subprocess.run(['objdump', '-drw', str(path)], check=True, capture_output=True, text=True).stdout
    functions, object_name, starts, section, pending = [], None, {}, '.text', []
    for line in listing.splitlines():
        header = re.match(r'(?:.*/)?([^/]+\.o):\s+file format', line)
        if header:
            object_name, starts = header.group(1), {}
            continue
        header = re.match(r'Disassembly of section (\S+):', line)
        if header:
            section = header.group(1)
            continue
        header = re.match(r'([0-9a-f]+) <([^>+]+)>:', line)
        if header:
            functions.append(Function(object_name, header.group(2)))
            starts.setdefault(section, []).append((int(header.group(1), 16), header.group(2)))
            continue
        if not functions:
            continue
        uses = functions[-1].uses
        for target in re.findall(r'<([^>+]+)(?:\+0x[0-9a-f]+)?>', line):
            uses.add(target)
        for kind, target in re.findall(r'\b(R_[A-Z0-9_]+)\s+(\S+)', line):
            place = re.fullmatch(r'(\.text[^+-]*)([+-]0x[0-9a-f]+)?', target)
            if place:  # a static function by its place, which a PC-relative relocation gives less 4
                at = int(place.group(2) or '0', 16) + (4 if '_P' in kind else 0)
                pending.append((functions[-1], starts, place.group(1), at))
            else:
                uses.add(re.split(r'[+-]0x', target)[0].split('@')[0])
            if 'TLSGD' in kind or 'TLSLD' in kind:
                uses.add('__tls_get_addr')
    for function, places, where, at in pending:
        before = [name for start, name in places.get(where, []) if start <= at]
        if before:
            function.uses.add(before[-1])
    for function in functions:
        function.wanted = function.uses & undefined.get(function.object, set())
    return functions


def make_archive(sources, read=read_archive):
    """For self-tests: compiles {file name: C source} into an archive as meson would name it, and reads it."""
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for name, source in sources.items():
            source_path = Path(folder) / name
            source_path.write_text(source, encoding='utf-8')
            objects.append(str(source_path) + '.o')
            compiler = ['cc', '-O0', '-fPIC', '-w', '-fno-builtin', '-c']
            subprocess.run(compiler + [str(source_path), '-o', objects[-1]], check=True)
        archive = Path(folder) / 'lib.a'
        subprocess.run(['ar', 'rc', str(archive)] + objects, check=True)
        return read(archive)


def make_tree(folder, files):
    """For self-tests: writes {path: text} below a folder."""
    for name, text in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding='utf-8')


def expect(violations, *fragments):
    """For self-tests: exactly these violations, each known by a part of its text."""
    missing = [fragment for fragment in fragments if not any(fragment in violation for violation in violations)]
    if missing or len(violations) != len(fragments):
        print('self-test: expected', *fragments, sep='\n  ')
        print('self-test: found', *violations, sep='\n  ')
        sys.exit(1)


def report(violations):
    for violation in violations:
        print(violation)
    sys.exit(1 if violations else 0)
