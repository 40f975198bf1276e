"""Files of image processors and feature extractors, as transformers reads them."""

from typing import Any

OF_IMAGES = {
    **{"clip": "CLIP", "clip_vision_model": "CLIP", "llava": "CLIP"},
    **{"siglip": "Siglip", "siglip_vision_model": "Siglip"},
    **{"siglip2": "Siglip2", "siglip2_vision_model": "Siglip2"},
    **{"vit": "ViT", "deit": "DeiT", "dinov3_vit": "ViT"},
    **{"dinov2": "Bit", "dinov2_with_registers": "Bit"},
}
"""Beginning of the name of the class that reads images for a type; DINOv3's needs torchvision."""

OF_SOUNDS = {
    **{"whisper": "Whisper", "moonshine": "Wav2Vec2"},
    **{"wav2vec2": "Wav2Vec2", "hubert": "Wav2Vec2"},
}
"""The same for sounds."""


def processor_of(config: Any) -> dict[str, Any]:
    """Keys of preprocessor_config.json with the sizes of a config; none for a type of texts."""
    kind = config.model_type
    if kind in OF_SOUNDS:
        keys: dict[str, Any] = {"feature_extractor_type": f"{OF_SOUNDS[kind]}FeatureExtractor"}
        if kind == "whisper":  # whose windows are whole seconds
            hop = 16_000 // (2 * config.max_source_positions)
            keys |= {"feature_size": config.num_mel_bins, "chunk_length": 1, "hop_length": hop}
        return keys
    if kind not in OF_IMAGES:
        return {}
    vision, name = getattr(config, "vision_config", config), OF_IMAGES[kind]
    keys = {"image_processor_type": f"{name}ImageProcessor"}
    if name == "Siglip2":
        return keys | {"patch_size": vision.patch_size, "max_num_patches": vision.num_patches}
    square = dict.fromkeys(("height", "width"), vision.image_size)
    return keys | {"size": square, "crop_size": square}
