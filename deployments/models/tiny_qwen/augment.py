"""Noise for customers' lines, so that an answer hangs on what is asked and not on how it is typed.

Everything draws from the `random.Random` it is given; the same state gives the same text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from deployments.models.tiny_qwen.corpus import Corpus

CASED = ("en", "id")
SPACED = ("en", "id", "ko", "ar")
PRODUCT_WORDS = (
    "Grix Shop", "T-shirt", "iPhone", "sneakers", "A1024", "#58213", "USB-C", "Wi-Fi", "Bluetooth",
    "order 7731", "laptop", "hoodie", "GX-200", "size M", "headphones", "Kindle", "No. 4410", "OK", "jeans",
    "backpack", "Pro Max",
)  # fmt: skip
TAILS = {
    "zh": ("？", "。", "！", "?", "……", "~"),
    "ja": ("？", "。", "！", "…", "?"),
    "ar": ("؟", ".", "!", "؟؟", "?"),
    "en": ("?", ".", "!", "??", "!!", "..."),
    "id": ("?", ".", "!", "??", "ya?"),
    "ko": ("?", ".", "!", "??", "~"),
}
JOINERS = {
    "zh": ("，", "。", " ", "\n", "，另外，"),
    "ja": ("。", "、", " ", "\n", "。あと、"),
    "ar": ("، ", ". ", " ", "\n", " و"),
    "en": (". ", ", ", "\n", " and ", "? "),
    "id": (". ", ", ", "\n", " dan ", "? "),
    "ko": (". ", ", ", "\n", " 그리고 "),
}
# Simplified and traditional forms of the characters that customers' lines use, pairwise.
_HANT_PAIRS = (
    "万萬业業东東两兩个個临臨为為举舉义義书書买買于於么麼从從们們优優会會关關册冊写寫军軍决決况況准準凑湊几幾凭憑别別剧劇办辦务務单單"
    "卖賣却卻历歷压壓发發号號后後吗嗎听聽员員问問国國坏壞处處复復头頭学學对對尽盡币幣帮幫并並应應开開张張弹彈录錄态態总總户戶扰擾报報"
    "择擇换換据據数數时時显顯机機条條来來极極标標样樣欢歡气氣沟溝没沒涨漲满滿灭滅点點烦煩烧燒状狀现現电電码碼礼禮离離种種积積笔筆红紅"
    "线線经經绑綁结結给給绝絕统統药藥荐薦营營补補见見计計订訂记記讲講设設证證译譯试試诗詩话話询詢该該语語误誤说說请請读讀谁誰谢謝财財"
    "败敗账帳货貨质質购購贵貴费費资資赛賽转轉载載较較输輸辞辭边邊达達过過运運还還这這进進远遠适適选選递遞邮郵释釋里裡钱錢银銀销銷锅鍋"
    "错錯镜鏡长長门門闭閉间間际際题題颜顏额額飞飛饺餃马馬龙龍戏戲页頁网網络絡链鏈"
)
HANT = str.maketrans(dict(zip(_HANT_PAIRS[::2], _HANT_PAIRS[1::2], strict=True)))


def noisy(rng: random.Random, text: str, corpus: Corpus) -> str:
    """`text` as a customer might type it; four draws in ten leave it alone."""
    language = corpus.language
    if rng.random() < 0.3:
        return text
    if rng.random() < 0.08:
        text = drop_piece(rng, text, language)
    if rng.random() < 0.08:
        text = insert_word(rng, text, rng.choice(PRODUCT_WORDS), language)
    if rng.random() < 0.20:
        text = rng.choice(corpus.openers) + text
    if rng.random() < 0.15:
        text = text.rstrip("？。?.؟! ") + rng.choice(corpus.closers)
    if rng.random() < 0.25:
        text = text.rstrip("？。?.؟!~… ") + rng.choice(("", *TAILS[language]))
    for chance in (0.25, 0.2):
        if rng.random() >= chance:
            break
        text = typo(rng, text, language)
    if language in CASED:
        text = recase(rng, text)
    if language == "zh" and rng.random() < 0.15:
        text = text.translate(HANT)
    if language in SPACED and rng.random() < (0.08 if language == "ko" else 0.02):
        text = text.replace(" ", "", rng.randint(1, 3))
    if rng.random() < 0.04:
        text = rng.choice((" ", "\n", "  ")) + text + rng.choice(("", " ", "\n", "\n\n"))
    return text


def typo(rng: random.Random, text: str, language: str) -> str:
    """One slip of the finger: a letter swapped, lost, doubled, or (where keys are letters) replaced."""
    if len(text) < (8 if language in SPACED else 5):
        return text
    i = rng.randrange(1, len(text) - 1)
    kind = rng.randrange(4 if language in CASED else 3)
    if kind == 0:
        return text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    if kind == 1:
        return text[:i] + text[i + 1 :]
    if kind == 2:
        return text[:i] + text[i] + text[i:]
    return text[:i] + rng.choice("abcdefghijklmnopqrstuvwxyz") + text[i + 1 :]


def recase(rng: random.Random, text: str) -> str:
    """Mostly as it is; else all small, ALL CAPS, or Every Word Capitalised."""
    draw = rng.random()
    if draw < 0.18:
        return text.upper()
    if draw < 0.34:
        return text.lower()
    return text.title() if draw < 0.37 else text


def drop_piece(rng: random.Random, text: str, language: str) -> str:
    """Without one word, or without two characters where words are not spaced; short texts stay whole."""
    if language in SPACED:
        words = text.split(" ")
        if len(words) < 4:
            return text
        del words[rng.randrange(len(words))]
        return " ".join(words)
    if len(text) < 9:
        return text
    i = rng.randrange(len(text) - 2)
    return text[:i] + text[i + 2 :]


def insert_word(rng: random.Random, text: str, word: str, language: str) -> str:
    """A foreign word between two words, or anywhere where words are not spaced."""
    if language in SPACED:
        words = text.split(" ")
        words.insert(rng.randrange(len(words) + 1), word)
        return " ".join(words)
    i = rng.choice((0, len(text), rng.randrange(len(text) + 1)))
    pad = rng.choice(("", " "))
    return text[:i] + pad + word + pad + text[i:]


def joined(rng: random.Random, pieces: Sequence[str], language: str) -> str:
    """Several lines as one message."""
    text = pieces[0]
    for piece in pieces[1:]:
        text = text.rstrip("？。?.؟! ") + rng.choice(JOINERS[language]) + piece
    return text
