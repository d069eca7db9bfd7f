"""Which layer of an encoder BERTScore takes: the one that its authors found to agree best with human ratings."""

_NAMES = {
    1: "byt5-small",
    2: "blenderbot-400M-distill",
    4: (
        "bert-base-uncased-embedding-relative-key deberta-v3-small distilbert-base-turkish-cased "
        "distilbert-base-uncased-distilled-squad prophetnet-large-uncased"
    ),
    5: "distilbert-base-multilingual-cased distilbert-base-uncased distilroberta-base xlnet-base-cased",
    6: "bart-base led-base-16384 t5-small xlm-mlm-en-2048",
    7: (
        "bert-base-uncased-embedding-relative-key-query blenderbot_small-90M longformer-base-4096 "
        "prophetnet-large-uncased-cnndm roberta-base-openai-detector xlnet-large-cased "
        "xprophetnet-large-wiki100-cased"
    ),
    8: (
        "albert-xxlarge-v1 albert-xxlarge-v2 bert-base-chinese bigbird-base-trivia-itc mpnet-base mt5-small "
        "pegasus-large scibert_scivocab_uncased spanbert-base-cased unsup-simcse-roberta-base"
    ),
    9: (
        "albert-base-v2 bart-large-xsum bert-base-cased-finetuned-mrpc bert-base-multilingual-cased bert-base-uncased "
        "bertweet-base conv-bert-medium-small deberta-base deberta-base-mnli deberta-v3-base "
        "electra-base-discriminator electra-small-generator scibert_basevocab_uncased scibert_scivocab_cased "
        "squeezebert-mnli squeezebert-mnli-headless squeezebert-uncased xlm-roberta-base"
    ),
    10: (
        "albert-base-v1 bart-large bart-large-cnn bert-base-turkish-cased bigbird-roberta-base conv-bert-base "
        "conv-bert-small deberta-v2-xlarge deberta-v3-xsmall electra-base-generator finbert mdeberta-v3-base "
        "roberta-base sup-simcse-bert-base-uncased sup-simcse-roberta-base unsup-simcse-bert-base-uncased "
        "xlm-mlm-100-1280"
    ),
    11: "bart-large-mnli electra-small-discriminator mt5-base pegasus-xsum t5-base t5_paraphraser",
    12: (
        "T5_Paraphrase_Paws deberta-v3-large mbart-large-50 mbart-large-50-many-to-many-mmt "
        "mbart-large-50-one-to-many-mmt mbart-large-cc25 mbart-large-en-ro"
    ),
    13: "albert-xlarge-v2 unsup-simcse-roberta-large",
    14: (
        "albert-large-v2 bigbird-roberta-large electra-large-discriminator longformer-large-4096 "
        "longformer-large-4096-finetuned-triviaqa"
    ),
    15: "pegasus_paraphrase roberta-large-openai-detector",
    16: "albert-xlarge-v1 deberta-large sup-simcse-roberta-large",
    17: "albert-large-v1 byt5-base deberta-v2-xlarge-mnli roberta-large spanbert-large-cased xlm-roberta-large",
    18: (
        "DeBERTa-v3-large-mnli bert-large-uncased deberta-large-mnli deberta-xlarge electra-large-generator "
        "sup-simcse-bert-large-uncased unsup-simcse-bert-large-uncased"
    ),
    19: "bert-large-uncased-whole-word-masking-embedding-relative-key-query mt5-large roberta-large-mnli",
    21: "deberta-v2-xxlarge",
    22: "deberta-v2-xxlarge-mnli",
    23: "t5-large",
    24: "mt5-xl",
    30: "byt5-large",
    40: "deberta-xlarge-mnli",
}
LAYERS = {name: layer for layer, names in _NAMES.items() for name in names.split()}
