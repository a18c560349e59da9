"""A Parquet or Arrow file as pyarrow writes it, for the test of Headwater's reader: `python -m headwater_tools.tables FILE`,
or a folder of small files with rows that span pages: `… FOLDER`."""

import sys

ROWS = 300


def row(i):
    """Row `i`: numbers, a list of 0 to 6 elements, a list of two, and a struct, all functions of `i`."""
    return {
        "small": i % 100 - 50,
        "large": i * 1_000_003 - 77,
        "real": i / 8 - 3.5,
        "even": i % 2 == 0,
        "ids": [i * 7 + j for j in range(i % 7)],
        "pair": [i * 0.5, -i * 0.25],
        "inner": {"depth": i % 11},
        "note": f"row {i}",
    }


def write(path):
    """
    Writes the rows in several groups. `.parquet`: with dictionaries, in pages of the second version, Snappy. `.feather`: with a
    footer, LZ4. `.arrow`: as a stream, as the `datasets` library keeps them.
    """
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as pq

    schema = pa.schema([
        ("small", pa.int8()), ("large", pa.int64()), ("real", pa.float32()), ("even", pa.bool_()), ("ids", pa.list_(pa.int32())),
        ("pair", pa.list_(pa.float64(), 2)), ("inner", pa.struct([("depth", pa.uint16())])), ("note", pa.string()),
    ])  # fmt: skip
    table = pa.Table.from_pylist([row(i) for i in range(ROWS)], schema=schema)
    kind = str(path).rsplit(".", 1)[-1]
    if kind == "feather":
        feather.write_feather(table, str(path), compression="lz4", chunksize=128)
    elif kind == "arrow":
        with pa.ipc.new_stream(str(path), schema) as stream:
            stream.write_table(table, max_chunksize=128)
    elif kind == "parquet":
        pq.write_table(table, path, row_group_size=128, data_page_version="2.0", compression="snappy", data_page_size=512)
    else:
        raise ValueError(f"{path}: a table is written as .parquet, .feather or .arrow")


def pages(folder):
    """
    Writes tables of 13 rows of three numbers, element j of row i being 3 i + j, in pages of a few bytes: rows span them, and
    some pages hold nothing. `null.parquet` lacks an element of row 7.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def table(nullable=True, missing=None):
        rows = [[float(3 * i + j) for j in range(3)] for i in range(13)]
        if missing is not None:
            rows[missing][1] = None
        kind = pa.list_(pa.field("element", pa.float32(), nullable=nullable))
        return pa.table({"x": rows}, schema=pa.schema([pa.field("x", kind, nullable=nullable)]))

    def save(name, table, size=8, batch=2, compression="NONE", **more):
        path = f"{folder}/{name}.parquet"
        pq.write_table(table, path, data_page_size=size, write_batch_size=batch, compression=compression, store_schema=False, **more)

    for version in ("1.0", "2.0"):
        for size, batch in ((16, 1), (16, 2), (8, 5), (4, 1)):
            for kind in ("dictionary", "plain"):
                name = f"v{version[0]}_{size}_{batch}_{kind}"
                save(name, table(), size, batch, data_page_version=version, use_dictionary=kind == "dictionary", write_statistics=False)
    save("groups", table(), row_group_size=4, compression="snappy")
    save("index", table(), write_page_index=True)
    save("required", table(nullable=False))
    save("null", table(missing=7))


if __name__ == "__main__":
    (write if "." in sys.argv[1].rsplit("/", 1)[-1] else pages)(sys.argv[1])
