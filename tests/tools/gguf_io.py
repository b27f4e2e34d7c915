"""GGUF for the tests: a reader, a writer and dequantizers, written from the format alone.

Shares no code with the C reader and none with the PyPI package gguf, so that the three can be checked against
each other. It trusts its input: hostile files are the C reader's business.

Shapes: GGUF stores dims with the fastest first (ne0 = K, ne1 = rows); arrays here have numpy's order (rows, K).
"""

import mmap
import struct

import numpy as np

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
BLOCK = 32         # values per block of the plain block types
SUPER_BLOCK = 256  # of those with scales of sub-blocks

# name: (id in the file, values per block, bytes per block)
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, BLOCK, 18),
    "Q4_1": (3, BLOCK, 20),
    "Q5_0": (6, BLOCK, 22),
    "Q5_1": (7, BLOCK, 24),
    "Q8_0": (8, BLOCK, 34),
    "Q2_K": (10, SUPER_BLOCK, 84),
    "Q3_K": (11, SUPER_BLOCK, 110),
    "Q4_K": (12, SUPER_BLOCK, 144),
    "Q5_K": (13, SUPER_BLOCK, 176),
    "Q6_K": (14, SUPER_BLOCK, 210),
    "IQ4_NL": (20, BLOCK, 18),
    "IQ4_XS": (23, SUPER_BLOCK, 136),
    "BF16": (30, 1, 2),
}
# Where the halves of a block are: d, and the factor of the minimum where there is one.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
TYPE_NAMES = {type_id: name for name, (type_id, _, _) in TYPES.items()}

# Metadata value types: name: (id, struct format); the two without a fixed size come after.
SCALARS = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"),
    "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d"),
}
SCALAR_FORMATS = {type_id: fmt for type_id, fmt in SCALARS.values()}
STRING_ID = 8
ARRAY_ID = 9


def nbytes(type_name, dims):
    """Bytes of a tensor of this type and GGUF dims."""
    _, per_block, block_bytes = TYPES[type_name]
    if dims[0] % per_block:
        raise ValueError(f"K = {dims[0]} is not a multiple of {per_block} ({type_name})")
    values = 1
    for d in dims:
        values *= d
    return values // per_block * block_bytes


class Tensor:
    """Name, type, GGUF dims and raw bytes of one tensor (a view of the mapped file)."""

    def __init__(self, name, type_name, dims, raw):
        self.name, self.type, self.dims, self.raw = name, type_name, dims, raw

    @property
    def shape(self):
        return tuple(reversed(self.dims))

    def f32(self, first=0, count=None):
        """Dequantized float32, shape (rows, K) or (K,); rows first .. first + count of a matrix only."""
        if count is None:
            return dequantize(self.raw, self.type).reshape(self.shape)
        row = len(self.raw) // self.dims[1]
        part = self.raw[first * row : (first + count) * row]
        return dequantize(part, self.type).reshape(count, self.dims[0])


class Reader:
    """A mapped GGUF file: .version, .meta (key to Python value), .tensors (name to Tensor), in file order."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        if self._bytes(4) != MAGIC:
            raise ValueError(f"{path}: no GGUF magic")
        self.version = self._scalar("I")
        if self.version not in (2, 3):
            raise ValueError(f"{path}: GGUF version {self.version}")
        tensor_count, kv_count = self._scalar("Q"), self._scalar("Q")
        self.meta = {}
        for _ in range(kv_count):
            key = self._string()
            self.meta[key] = self._value(self._scalar("I"))
        infos = [self._info() for _ in range(tensor_count)]
        alignment = self.meta.get("general.alignment", DEFAULT_ALIGNMENT)
        data_at = (self._at + alignment - 1) // alignment * alignment
        self.tensors = {}
        for name, type_name, dims, offset in infos:
            raw = np.frombuffer(self._map, np.uint8, nbytes(type_name, dims), data_at + offset)
            self.tensors[name] = Tensor(name, type_name, dims, raw)

    def _bytes(self, n):
        b = self._map[self._at : self._at + n]
        if len(b) != n:
            raise ValueError(f"file ends at {len(self._map)}, wanted {n} bytes at {self._at}")
        self._at += n
        return b

    def _scalar(self, fmt):
        return struct.unpack("<" + fmt, self._bytes(struct.calcsize("<" + fmt)))[0]

    def _string(self):
        return self._bytes(self._scalar("Q")).decode("utf-8", "surrogateescape")

    def _value(self, type_id):
        if type_id == STRING_ID:
            return self._string()
        if type_id != ARRAY_ID:
            return self._scalar(SCALAR_FORMATS[type_id])
        element, count = self._scalar("I"), self._scalar("Q")
        if element in SCALAR_FORMATS:
            fmt = f"<{count}{SCALAR_FORMATS[element]}"
            return list(struct.unpack(fmt, self._bytes(struct.calcsize(fmt))))
        return [self._value(element) for _ in range(count)]

    def _info(self):
        name = self._string()
        dims = [self._scalar("Q") for _ in range(self._scalar("I"))]
        type_id = self._scalar("I")
        if type_id not in TYPE_NAMES:
            raise ValueError(f"tensor {name} has type {type_id}, which is not one of {sorted(TYPES)}")
        return name, TYPE_NAMES[type_id], dims, self._scalar("Q")


def write(path, meta, tensors, version=3, alignment=DEFAULT_ALIGNMENT):
    """Writes a GGUF file.

    meta: list of (key, kind, value); kind is a name in SCALARS, "str", or "[kind]" for a list.
    tensors: list of (name, type name, GGUF dims, make); make() returns the raw bytes as a uint8 array and is
    called once, in order, so that only one tensor is in memory.
    """
    if alignment != DEFAULT_ALIGNMENT:
        meta = meta + [("general.alignment", "u32", alignment)]
    with open(path, "wb") as f:
        f.write(MAGIC + struct.pack("<IQQ", version, len(tensors), len(meta)))
        for key, kind, value in meta:
            f.write(_pack_string(key) + struct.pack("<I", _kind_id(kind)) + _pack(kind, value))
        offset = 0
        for name, type_name, dims, _ in tensors:
            f.write(_pack_string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
            f.write(struct.pack("<IQ", TYPES[type_name][0], offset))
            offset += -(-nbytes(type_name, dims) // alignment) * alignment
        for name, type_name, dims, make in tensors:
            f.write(b"\0" * (-f.tell() % alignment))
            raw = make()
            if raw.nbytes != nbytes(type_name, dims):
                raise ValueError(f"tensor {name}: {raw.nbytes} bytes made, {nbytes(type_name, dims)} expected")
            f.write(raw.data)
        f.write(b"\0" * (-f.tell() % alignment))


def typed_meta(reader):
    """The metadata of a model as write() takes it."""
    kinds = {"token": "str", "token_type": "i32", "tokens": "str", "merges": "str", "languages": "str", "tags": "str", "scores": "f32"}
    meta = []
    for key, value in reader.meta.items():
        if isinstance(value, list):
            kind = f"[{kinds[key.rsplit('.', 1)[1]]}]"
        elif isinstance(value, str):
            kind = "str"
        else:
            kind = {bool: "bool", int: "u32", float: "f32"}[type(value)]
        meta.append((key, kind, value))
    return meta


def dequantize_file(source, path):
    """The same model with every tensor dequantized to F32: what an engine computes without rounding activations."""
    r = Reader(source)
    tensors = [(t.name, "F32", t.dims, lambda t=t: t.f32().reshape(-1).view(np.uint8)) for t in r.tensors.values()]
    write(path, typed_meta(r), tensors)


def _pack_string(s):
    b = s.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(b)) + b


def _kind_id(kind):
    if kind.startswith("["):
        return ARRAY_ID
    return STRING_ID if kind == "str" else SCALARS[kind][0]


def _pack(kind, value):
    if kind == "str":
        return _pack_string(value)
    if not kind.startswith("["):
        return struct.pack("<" + SCALARS[kind][1], value)
    element = kind[1:-1]
    head = struct.pack("<IQ", _kind_id(element), len(value))
    return head + b"".join(_pack(element, v) for v in value)


# Dequantizers: raw bytes (uint8) to flat float32, as the format defines them. d*q is exact in float32 (a half
# has 11 significant bits, a code at most 8), so d*q + m rounds once whether it is fused or not; so is d*scale*q where a
# sub-block has a scale (at most 24 bits).


def dequantize(raw, type_name):
    return _DEQUANTIZE[type_name](np.ascontiguousarray(raw))


def _f16(blocks, at):
    """The half at byte `at` of every block, as a float32 column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(qs):
    """16 bytes a block to 32 codes: low nibbles first, then high ones."""
    return np.concatenate([qs & 15, qs >> 4], axis=1)


def _fifth_bits(blocks, at):
    """The 32-bit word at byte `at`: its bit j is bit 4 of code j."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _bf16(raw):
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(raw):
    b = raw.reshape(-1, 18)
    return (_f16(b, 0) * (_nibbles(b[:, 2:]).astype(np.float32) - 8)).ravel()


def _q4_1(raw):
    b = raw.reshape(-1, 20)
    return (_f16(b, 0) * _nibbles(b[:, 4:]).astype(np.float32) + _f16(b, 2)).ravel()


def _q5_0(raw):
    b = raw.reshape(-1, 22)
    codes = _nibbles(b[:, 6:]) | _fifth_bits(b, 2)
    return (_f16(b, 0) * (codes.astype(np.float32) - 16)).ravel()


def _q5_1(raw):
    b = raw.reshape(-1, 24)
    codes = _nibbles(b[:, 8:]) | _fifth_bits(b, 4)
    return (_f16(b, 0) * codes.astype(np.float32) + _f16(b, 2)).ravel()


def _q8_0(raw):
    b = raw.reshape(-1, 34)
    return (_f16(b, 0) * b[:, 2:].view(np.int8).astype(np.float32)).ravel()


def _super(d, scales, codes):
    """d [n][1] times the scales [n][s] of sub-blocks times the codes [n][256]."""
    n, s = scales.shape
    return ((d * scales.astype(np.float32))[:, :, None] * codes.astype(np.float32).reshape(n, s, -1)).reshape(n, -1)


def _bits(b, count, width):
    """Numbers of `width` bits: of bytes [n][m][32] the lowest bits of each 32, then the next, `count` times."""
    return np.stack([b >> (width * i) & (2**width - 1) for i in range(count)], axis=2).reshape(len(b), -1)


def _six_bit_pairs(b):
    """12 bytes a block: 8 scales and 8 minima of 6 bits."""
    low, high, last = b[:, 0:4], b[:, 4:8], b[:, 8:12]
    scales = np.concatenate([low & 63, last & 15 | low >> 6 << 4], axis=1)
    return scales, np.concatenate([high & 63, last >> 4 | high >> 6 << 4], axis=1)


def _q2_k(raw):
    b = raw.reshape(-1, 84)
    codes, ones = _bits(b[:, 16:80].reshape(-1, 2, 32), 4, 2), np.ones((len(b), 256))
    return (_super(_f16(b, 80), b[:, :16] & 15, codes) - _super(_f16(b, 82), b[:, :16] >> 4, ones)).ravel()


def _q3_k(raw):
    b = raw.reshape(-1, 110)
    codes = _bits(b[:, 32:96].reshape(-1, 2, 32), 4, 2).astype(np.int32)
    codes += 4 * _bits(b[:, :32].reshape(-1, 1, 32), 8, 1).astype(np.int32) - 4
    s = b[:, 96:108]
    low = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], axis=1)
    high = np.concatenate([s[:, 8:] >> 2 * i & 3 for i in range(4)], axis=1)
    return _super(_f16(b, 108), (low | high << 4).astype(np.int32) - 32, codes).ravel()


def _q4_k(raw):
    b = raw.reshape(-1, 144)
    scales, mins = _six_bit_pairs(b[:, 4:16])
    codes, ones = _bits(b[:, 16:].reshape(-1, 4, 32), 2, 4), np.ones((len(b), 256))
    return (_super(_f16(b, 0), scales, codes) - _super(_f16(b, 2), mins, ones)).ravel()


def _q5_k(raw):
    b = raw.reshape(-1, 176)
    scales, mins = _six_bit_pairs(b[:, 4:16])
    codes, ones = _bits(b[:, 48:].reshape(-1, 4, 32), 2, 4), np.ones((len(b), 256))
    codes = codes | _bits(b[:, 16:48].reshape(-1, 1, 32), 8, 1) << 4
    return (_super(_f16(b, 0), scales, codes) - _super(_f16(b, 2), mins, ones)).ravel()


def _q6_k(raw):
    b = raw.reshape(-1, 210)
    low = _bits(b[:, :128].reshape(-1, 2, 64), 2, 4)
    high = _bits(b[:, 128:192].reshape(-1, 2, 32), 4, 2)
    codes = (low | high << 4).astype(np.int32) - 32
    return _super(_f16(b, 208), b[:, 192:208].view(np.int8), codes).ravel()


IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def _iq4_nl(raw):
    b = raw.reshape(-1, 18)
    return (_f16(b, 0) * IQ4_VALUES[_nibbles(b[:, 2:])]).ravel()


def _iq4_xs(raw):
    b = raw.reshape(-1, 136)
    high = b[:, 2:4].copy().view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    codes = _bits(b[:, 8:].reshape(-1, 8, 16), 2, 4)
    return _super(_f16(b, 0), (low | high << 4).astype(np.int32) - 32, IQ4_VALUES[codes]).ravel()


_DEQUANTIZE = {
    "F32": lambda raw: raw.view("<f4").astype(np.float32),
    "F16": lambda raw: raw.view("<f2").astype(np.float32),
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
