"""Models in formats that other libraries load: folders of Hugging Face, GGUF files."""
