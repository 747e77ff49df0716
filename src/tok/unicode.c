/* unicode.c - character classes, from utf8proc's categories, with the exceptions the reference tokenizers make. */
#include <utf8proc.h>

#include "text.h"

/* Categories of ASCII, so that most text never reaches the tables. */
static bool ascii_alpha(uint32_t c) { return (c | 32) - 'a' < 26; }
static bool ascii_digit(uint32_t c) { return c - '0' < 10; }

bool fv__is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool fv__is_punct(uint32_t cp)
{
    if (cp < 0x80) return cp > 32 && cp < 127 && !ascii_alpha(cp) && !ascii_digit(cp);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool fv__is_numeric(uint32_t cp)
{
    if (cp < 0x80) return ascii_digit(cp);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool fv__is_letter(uint32_t cp)
{
    if (cp < 0x80) return ascii_alpha(cp);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool fv__is_mark(uint32_t cp)
{
    if (cp < 0x300) return false;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

bool fv__is_nonspacing(uint32_t cp)
{
    return cp >= 0x300 && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_MN;
}

/* \w: Alphabetic, marks, decimal numbers, connectors, joiners.  Alphabetic is letters, letter numbers and the circled letters. */
bool fv__is_word(uint32_t cp)
{
    if (cp < 0x80) return ascii_alpha(cp) || ascii_digit(cp) || cp == '_';
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    case UTF8PROC_CATEGORY_SO:
        return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
               (cp >= 0x1F170 && cp <= 0x1F189);
    default: return cp == 0x200C || cp == 0x200D;
    }
}

bool fv__is_control(uint32_t cp)
{
    if (cp < 0x80) return cp < 32 || cp == 127;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

bool fv__is_cjk(uint32_t cp)
{
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) || (cp >= 0x20000 && cp <= 0x2A6DF) ||
           (cp >= 0x2A700 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) || (cp >= 0xF900 && cp <= 0xFAFF) ||
           (cp >= 0x2F800 && cp <= 0x2FA1F);
}

uint32_t fv__lower(uint32_t cp)
{
    if (cp < 0x80) return cp - 'A' < 26 ? cp + 32 : cp;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

int fv__gpt_class(uint32_t cp)
{
    if (cp < 0x80) return ascii_alpha(cp) ? 1 : ascii_digit(cp) ? 2 : cp == ' ' || (cp >= 9 && cp <= 13) ? 3 : 0;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    if (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) return 1;
    if (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO) return 2;
    return fv__is_space(cp) ? 3 : 0;
}

/* Bytes that print as themselves in Latin-1 keep their number; the other 68 follow from U+0100. */
uint32_t fv__byte_to_char(unsigned char b)
{
    if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174) return b;
    return 256u + (b < 33 ? b : b < 161 ? b - 127u + 33u : 67u);
}

int fv__char_to_byte(uint32_t cp)
{
    if (cp < 256) return fv__byte_to_char((unsigned char)cp) == cp ? (int)cp : -1;
    if (cp < 256 + 33) return (int)cp - 256;
    if (cp < 256 + 67) return (int)cp - 256 - 33 + 127;
    return cp == 256 + 67 ? 173 : -1;
}
