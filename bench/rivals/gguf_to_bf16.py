"""gguf_to_bf16.py FROM FOLDER: a GGUF file's model in bf16 as Hugging Face keeps it, which vLLM reads on CPUs."""
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers

source, folder = map(pathlib.Path, sys.argv[1:])
part = folder.with_name(folder.name + ".part")
names = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
model = transformers.AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32).to(torch.bfloat16)
model.hf_quantizer = None  # the weights are no GGUF's any more
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(part)
transformers.AutoTokenizer.from_pretrained(**names).save_pretrained(part)
part.rename(folder)
