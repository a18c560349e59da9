"""Records how Hugging Face's tokenizers split odd texts by regular expressions: `python -m headwater_tools.patterns FILE`.

`tokenizers` reads the expressions of a `tokenizer.json` by Oniguruma, in a wheel, while Headwater translates them for
another library. Its tests read the recorded file: what they translate must split the same texts at the same places.
Of properties the number of their members is recorded, and the sum of the squares of their code points.
"""

import json
import sys

from tokenizers import Regex, normalizers, pre_tokenizers

# Patterns of tokenizers in use: all must be translated.
KNOWN = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "deepseek digits": r"\p{N}{1,3}",
    "deepseek scripts": r"[一-龥぀-ゟ゠-ヿ]+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s",
    "falcon digits": r"[0-9][0-9][0-9]",
    "starcoder": r"\p{N}",
    "words": r"\w+|[^\w\s]+",
    "clip": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "spaces": r" {2,}",
    "whitespace": r"\s+",
    "xglm": r"[\n\r\t\u200b]",
}

# Parts of the grammar, each in a short pattern.
GRAMMAR = r"""
\w \W \w+ \W+ \s \S+ \d+ \D+ \h+ \H+ \b \B \b\w+\b \bx \B. ^ $ ^. .$ ^\w+ \w+$ ^$ \A \z \Z \A\w+ \w+\z .\Z . .+ .*
(?m). (?m).+ (?m:.)x \R \R+ \N+ \O \O+ \X \X+ \K b\Ka \w\K\s (?:b\K)a [\w]+ [^\w]+ [\W]+ [^\W]+ [\w\s] [^\w\s]+ [\d\-]+
[\h]+ [^\h]+ [\p{L}\d]+ [\p{Word}]+ \p{Word}+ \P{Word}+ \p{^Word} [^\p{Word}]+ [[:word:]]+ [[:^word:]]+
[[:alnum:]]+ [[:alpha:]]+ [[:ascii:]]+ [[:blank:]]+ [[:cntrl:]] [[:digit:]]+ [[:graph:]]+ [[:lower:]]+ [[:print:]]+
[[:punct:]]+ [[:space:]]+ [[:upper:]]+ [[:xdigit:]]+ [[:^alpha:]]+ [^[:alpha:]]+ [[:alpha:][:digit:]]+ [^[:punct:]]+
[[:^punct:]]+ [[:^graph:]] [[:^print:]] [[:^blank:]]+ [[:foo:]] [:alpha:]+
\p{Alnum}+ \p{Alpha}+ \p{Punct}+ \P{Punct}+ [\p{Punct}]+ [^\p{Punct}]+ [\P{Punct}] \p{Graph}+ \p{Print}+ \p{Blank}+
\p{XDigit}+ \p{Space}+ \p{Lower}+ \p{Upper}+ \p{Digit}+ \p{Cntrl} \p{ASCII}+ \p{^L}+ \P{^L}+ \p{ l u } \p{L-u} \p{l_u}
\p{Any} \p{Assigned}+ \p{InBasicLatin}+ \p{In_Basic_Latin} \p{IsGreek} \p{Greek}+ \p{grek} \pL \p{sc=Greek} \p{Foo}
a|b|c ab|a|b (a|ab)(c|bcd) (?:ab)+ (?<x>a)b (?<x>a)\k<x> (a)\1 (?=a)b (?=b)b (?!a)\w (?<=a)b (?<!a)b (?<=a|bc)d
(?<!a|bc)d (?<=a+)b (?<!a*)b (?<=^)a (?<=\s)\w (?<!\w)\w+ (?>a+)b (?>a|ab)c a++b a*+b a?+b x?+ (?#comment)a a(?#)b
a{2} a{2,} a{,2} a{1,2} a{2}? a{1,2}? a{2,}? a{1,2}+ a{2,1} a{2}{2} a{1,2}+b a{2}* a{1,2}++ a{2}+? a{2}?{2} a{1,2}?+ \d{1,3}+ (?:a{2}){2} a{0} a{0,1} a{,} a{ a{x} {2} } ] a{2
a** a+* a*? a+? a?? a??b (?:a*)* (?:a|b*)*c (?:a?)+ (?:a|b)*? (?:a+)? (?:a+?)? (?:a??)? (?:a+)* (?:\w+\s)* (?:ab|)
a||b | (?:) ()a [a-c]+ [^a-c]+ [a-] [-a]+ [a\-c]+ [a-c-e]+ [\w-]+ [\w-.] [.-\w] [a-\d] []a]+ [^]a]+ [] [a [^] [^a
[a&&b] [a-z&&[^aeiou]]+ [^a-z&&[aeiou]]+ [a-z&&aeiou]+ [&&a] [a&&] [a&b]+ [a[bc]]+ [a[^bc]]+ [^a[bc]]+ [[a]]+ [a-z&&[a-f]&&[d-z]]+
[\t\n\r\f\v\a\e]+ [\x41-\x43]+ \x41 \x{1F600} \x{e9} \u00e9 \u0301 \xe9 \0 \012 \cA \C-a \M-a \o{101} \G. \y \Y \g<x> \e \a
\q \i \/ \_ \- \< \> \` \' \# \~ \é \@ (?~a) (?(1)a|b) (*FAIL) (?{x}) (?P<x>a) (?P=x) (?|a|b) (?'x'a) (?<1>a) (?<é>a)
(?i)a (?i)A+ (?i)k (?i)[k] (?i)s (?i)ß (?i)[ß] (?i)ss (?i)s+ (?i)s{2} (?i)(?:s)s (?i)(s|t)s (?i)st (?i)f+ (?i)fi (?i)ﬁ
(?i)i̇ (?i)İ (?i)ı (?i)i (?i)é (?i)É+ (?i)σ (?i)Σ+ (?i)µ (?i)ǆ (?i)ᾳ (?i)ά (?i)[a-z]+ (?i)[A-Z]+ (?i)[^a-z]+ (?i)[^A]+
(?i)\p{Lu}+ (?i)\p{Ll} (?i)[\p{Lu}] (?i)[^\p{Lu}]+ (?i)\w (?i)\b (?i)[\w] (?i)[x[^a]] (?i)[a-z&&[^k]] (?i)[[:upper:]]+
(?i)[[:^upper:]]+ (?i)[^[:upper:]]+ (?i)[ſ] (?i)ſ (?i)[\d] (?i)ʼn (?i)ŉ (?i:ab)c (?i:a)B a(?i)b|c a(?i:b|c) (?i)a(?-i)b
(?-i)A (?i-m)a (?im)a. (?s). (?x)a␣b (?x)a#c (?x:a␣b)c (?x)[a␣]+ (?x)\␣ (?x)a␣+ (?W)\w (?D)\d (?S)\s (?P)\w (?a)\w
(?u)\w (?y{g})\X (?L)a (?C)a (?i)th (?i)ll (?i)ve|re (?i:ing)\b (?i)don't (?i)[jJ]̌ (?i)ǰ (?i)[à-ÿ]+ (?i)[à-Þ]+ (?i)[α-ω]+
\s+$ ^\s+ (?<=\d)(?=(?:\d{3})+\b) \d{1,3}(?=(?:\d{3})*\b) [^\S\n]+ [\s\S] [\w\W]+ [^\s\w]+|\s+ \p{Lu}?\p{Ll}+|\p{Lu}+ [一-龥]+
[a-zA-Z]+|[0-9]+ \.|\! [.] \[ \] \( \) \| \{ \} \^ \$ \* \+ \? \\ \p{L}+(?:['’]\p{L}+)? [\u4e00-\u9fff] [\x{20000}-\x{2A6DF}]
[z-a] [\]] [\[] [\\] [\^a]+ [a^]+ [[] [#-&]+ [ -~]+ \p{M} \p{L}\p{M}* \p{Nd}+ \p{Emoji} \p{So} \p{Sc}
"""

TEXTS = [
    "plain text, it's here.\nI'LL go\r\n\r\n  two  spaces\t\ttabs \n",
    "x² and ½ cup ⅧⅣ ³¹¼¾ 1234567 12,345.67 ٣٤٥ ४५",
    "co\u200doperate zero\u200bwidth \ufeffbom soft\u00adhyphen nb\u00a0sp \u2003em\u3000id \u180e \u2060",
    "naïve café cafe\u0301 Å A\u030a ñ n\u0303 e\u0301\u0323",
    "a\r\nb\nc\x0bd\x0ce\x85f\u2028g\u2029h\n\na\n",
    "Straße STRASSE ss SS ſs ſt st ﬁ fi FF ﬀ ﬆ ǰ J\u030c ŉ \u02bcn İ i\u0307 I ı K k K Å å µ μ Σ σ ς ẞ",
    "\u01c4 \u01c5 \u01c6 ᾳ ᾼ αι ΑΙ ΐ ΰ ά Ω Ω ͅ ÀÉÿŸ",
    "日本語 テスト かな 漢字ｶﾅ 한국어 ไทย हिन्दी বাংলা العربية עברית Ελληνικά Кириллица 𠀋𪚥",
    "🇩🇪🇫🇷 👨\u200d👩\u200d👧 👍🏽 😀😃 ☺️ €£¥₹ ©®™ ±×÷ «»“”‘’ …—–",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ a_b _x_ __ a-b a.b",
    "abcabcaab aaa aaaa abbb bcd bbca d ad bcd xd ab ABC aBc Abc don't DON'T you've Th tH thing THING\n",
    "\ue000 \u0378 \U000e0001 \U00010ffff \x00 \x01 \x1b \x7f \x9f 𝟘𝟙 Ⓐⓐ ⅰⅷ ٠ ߀ 〇 一",
    "",
    "a",
    "\n",
    "ab\n",
]

# Names of Unicode's properties.
NAMES = """
ASCII_Hex_Digit Adlam Ahom Alphabetic Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak
Bengali Bhaiksuki Bidi_Control Bidi_Mirrored Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian
Case_Ignorable Cased Cased_Letter Caucasian_Albanian Chakma Cham Changes_When_Casefolded Changes_When_Casemapped
Changes_When_Lowercased Changes_When_Titlecased Changes_When_Uppercased Cherokee Chorasmian Close_Punctuation Common
Connector_Punctuation Control Coptic Cuneiform Currency_Symbol Cypriot Cypro_Minoan Cyrillic Dash Dash_Punctuation
Decimal_Number Default_Ignorable_Code_Point Deprecated Deseret Devanagari Diacritic Dives_Akuru Dogra Duployan
Egyptian_Hieroglyphs Elbasan Elymaic Emoji Emoji_Component Emoji_Modifier Emoji_Modifier_Base Emoji_Presentation
Enclosing_Mark Ethiopic Extended_Pictographic Extender Final_Punctuation Format Garay Georgian Glagolitic Gothic
Grantha Grapheme_Base Grapheme_Extend Grapheme_Link Greek Gujarati Gunjala_Gondi Gurmukhi Gurung_Khema Han Hangul
Hanifi_Rohingya Hanunoo Hatran Hebrew Hex_Digit Hiragana Hyphen IDS_Binary_Operator IDS_Trinary_Operator
IDS_Unary_Operator ID_Compat_Math_Continue ID_Compat_Math_Start ID_Continue ID_Start Ideographic Imperial_Aramaic InCB
Inherited Initial_Punctuation Inscriptional_Pahlavi Inscriptional_Parthian Javanese Join_Control Kaithi Kannada
Katakana Kawi Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Kirat_Rai Lao Latin Lepcha Letter
Letter_Number Limbu Line_Separator Linear_A Linear_B Lisu Logical_Order_Exception Lowercase Lowercase_Letter Lycian
Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Mark Masaram_Gondi Math Math_Symbol Medefaidrin
Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Modifier_Combining_Mark Modifier_Letter
Modifier_Symbol Mongolian Mro Multani Myanmar Nabataean Nag_Mundari Nandinagari New_Tai_Lue Newa Nko
Noncharacter_Code_Point Nonspacing_Mark Number Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Ol_Onal Old_Hungarian
Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur
Open_Punctuation Oriya Osage Osmanya Other Other_Alphabetic Other_Default_Ignorable_Code_Point Other_Grapheme_Extend
Other_ID_Continue Other_ID_Start Other_Letter Other_Lowercase Other_Math Other_Number Other_Punctuation Other_Symbol
Other_Uppercase Pahawh_Hmong Palmyrene Paragraph_Separator Pattern_Syntax Pattern_White_Space Pau_Cin_Hau Phags_Pa
Phoenician Prepended_Concatenation_Mark Private_Use Psalter_Pahlavi Punctuation Quotation_Mark Radical
Regional_Indicator Rejang Runic Samaritan Saurashtra Sentence_Terminal Separator Sharada Shavian Siddham SignWriting
Sinhala Soft_Dotted Sogdian Sora_Sompeng Soyombo Space_Separator Spacing_Mark Sundanese Sunuwar Syloti_Nagri Symbol
Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Terminal_Punctuation Thaana Thai
Tibetan Tifinagh Tirhuta Titlecase_Letter Todhri Toto Tulu_Tigalari Ugaritic Unassigned Unified_Ideograph Uppercase
Uppercase_Letter Vai Variation_Selector Vithkuqi Wancho Warang_Citi White_Space XID_Continue XID_Start Yezidi Yi
Zanabazar_Square
"""

POSIX = "Alnum Alpha ASCII Blank Cntrl Digit Graph Lower Print Punct Space Upper Word XDigit"


def pieces(pattern, text):
    """Where the matches of a pattern and what is between them end, in characters."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [end for _, (_, end) in split.pre_tokenize_str(text)]


def members(pattern, chars):
    """The characters that a pattern matches."""
    replace, found = normalizers.Replace(Regex(pattern), "\x00"), []
    for at in range(0, len(chars), 1 << 15):
        part = chars[at : at + (1 << 15)]
        got = replace.normalize_str("".join(part))
        assert len(got) == len(part), pattern
        found += [c for c, d in zip(part, got) if d == "\x00" and c != "\x00"]
    return found


def main():
    import random

    patterns = dict(KNOWN)
    patterns |= {p: p for p in (w.replace("␣", " ") for w in GRAMMAR.split())}
    # Random concatenations of pieces.
    draw = random.Random(1)
    atoms = [r"\w", r"\s", r"\b", r"\B", "^", "$", ".", "a", "b", r"\p{L}", r"[^\w]", r"\d", r"[[:alpha:]]", r"\R", "(?=b)",
             "(?<=a)", r"(?!\s)", r"(?i:k)", "(?:ab|a)", r"\p{Punct}", r"[\s\w]", r"\z", r"\A", " ", r"\n"]
    for _ in range(200):
        word = lambda: "".join(draw.choice(atoms) + draw.choice(["", "", "", "+", "*", "?", "{1,2}", "+?", "*?"])
                               for _ in range(draw.randint(1, 4)))
        pattern = "|".join(word() for _ in range(draw.randint(1, 3)))
        patterns[pattern] = pattern
    recorded, texts = [], TEXTS
    for name, pattern in patterns.items():
        try:
            spans = [pieces(pattern, text) for text in texts]
        except Exception as refused:
            spans = str(refused)
        recorded.append({"name": name, "pattern": pattern, "known": name in KNOWN, "spans": spans})
    chars = [chr(c) for c in range(1, 0xE0200) if not 0xD800 <= c < 0xE000 and not 0x33480 <= c < 0xE0000]
    properties = {}
    for name in (POSIX + NAMES).split():
        try:
            found = members(rf"\p{{{name}}}", chars)
        except Exception:
            continue
        properties[name] = [len(found), sum(ord(c) ** 2 for c in found)]
    import tokenizers

    with open(sys.argv[1], "w") as out:
        out.write('{"tokenizers": %s,\n"texts": %s,\n"properties": %s,\n"patterns": [\n' % tuple(
            json.dumps(x) for x in (tokenizers.__version__, texts, properties)))
        out.write(",\n".join(json.dumps(p, separators=(",", ":")) for p in recorded))
        out.write("\n]}\n")


if __name__ == "__main__":
    main()
