"""VSA-H3: video sparse attention over tiles of rows, as FastH3's checkpoints were trained with.

`tiles` lays rows out in tiles, `choose` ranks and picks key tiles, `reference` is the plain form for tests, `gather` and
`flex` are the fast ones, `attention` joins them; `processor` and `gates` put them into diffusers' transformer. The
arithmetic knows torch alone; only `processor` and `gates` know the transformer.
"""
