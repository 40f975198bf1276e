"""Function bodies that a portable bundle may contain.

A model-local function defines a custom operator by standard ones. Functions that call each other
expand exponentially when a graph is loaded (1.4 kB can hang a loader), so only the bodies listed
here are allowed, none of which calls another. `ortolan.export.passes.portable_bodies` writes them.
"""

KNOWN_FUNCTIONS: frozenset[str] = frozenset(
    {
        # FusedMatMul
        "aee0f910b952fda1a43dcb256f3e066c99f04360973202adf9cd1a025d346cb4",
        # GroupQueryAttention, without and with rotary positions
        "682bba767a9824ca1c4310157e7a66cb49c4c8165d149e2f0088d7165708ef3b",
        "154b7284171d664fbfbdf0f4e6c69a23594a232d1d0f0e5c3ff16c9e57dbf9d8",
        # the same with a bias
        "183133e78733a5bc8d811204fd14cf64a6165aac73d1deb75112e3c49de8ce6a",
        # the same without a cache: plain, with a bias, with rotary positions
        "64d8219cccd266b614b718a25272987ec195c143f000b86ce9860f3f20f5441a",
        "f5ef71c5e4ced32f55228db64c639b81ee13c01fdf70b48a471f1f9e12754b2d",
        "13a591bcc7ff4596bb0c45b0995a1bd73df5bb82dd0ff288c18f0990b20e344d",
        # GroupQueryAttention with separate queries, keys, values: plain, rotary, both without cache
        "2478585ced95cb28e81f8aab38d39f2cbfd9fc23aac96c1d121613beb05b75d6",
        "7bc25ec91643cb6772f8dc2719e0bdac0ec1c619e4504e2601a010c79b304454",
        "cbd74853434f753cd0b7d9751290ae165dd8fcec6e35368694301d747d628863",
        "2fdfd3916212860d9c69cb7a30b6af356d7f9b1c8474f744b4f436d0d2b74cbe",
        # with interleaved rotary positions: with and without cache, and both with separate inputs
        "fcab38aca252e9d5eafc32f3f84084333f05f51c17007dfa414511a7a9c3dfd5",
        "9d269009f80defe95622d14cbc72debf8d9cffa12513819cda9f8a26aa4c8231",
        "617bf29ff937e4bded55cc00ac997fea82cb955c2f273bf467e288a8542b86e8",
        "731c256ec00da729f8a7cb6882cdb683769dba7b01d619f66a382a5161737a32",
        # SkipSimplifiedLayerNormalization
        "8603c8a9d6abef5dd41ddde1b72f073eb7ec2113e74a55fc4655d3c6e09b30e7",
    }
)
"""SHA-256 of each serialized body that an export writes, in lower-case hexadecimal."""
