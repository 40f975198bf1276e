import torch
from tests.export import tiny_models
from torch import Tensor

from ortolan.export.quantize import gptq
from ortolan.export.quantize.blocks import Scheme, dequantize
from ortolan.export.quantize.calibrate import calibrated_weights
from ortolan.modeling.positions import tables
from ortolan.modeling.weights import ModuleWeights


def test_a_layer_is_calibrated_behind_the_layers_before_it_as_they_are_stored() -> None:
    module = tiny_models.decoder(tiny_models.llama())
    texts = [torch.arange(start, start + 60) for start in (0, 15, 30)]
    names = [n for n, p in module.named_parameters() if n.startswith("blocks.") and p.dim() == 2]
    plan = dict.fromkeys(names, Scheme(bits=4, group=32))
    weights = ModuleWeights(module)
    found = {
        weight.name: next(weight.parts).codes
        for weight in calibrated_weights(module.config, weights, tables(module.config), plan, texts)
    }

    seen: list[Tensor] = []
    name = "blocks.1.attention.qkv.weight"
    original = module.get_parameter(name).detach().clone()
    for other in names:
        if other.startswith("blocks.0."):
            module.get_parameter(other).data = dequantize(found[other])
    layer = module.get_submodule(name.removesuffix(".weight"))
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(0, -2)))
    with torch.no_grad():
        for ids in texts:
            module(ids[None])
        x_SK = torch.cat(seen)
        wanted = gptq.quantize(original, x_SK.T @ x_SK, plan[name])
    assert (found[name].values == wanted.values).float().mean() > 0.99
