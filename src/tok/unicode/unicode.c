/* unicode.c - character classes, from utf8proc's categories, with the exceptions the reference
 * tokenizers make. */
#include <utf8proc.h>

#include "tok/text.h"

/* Categories of ASCII, so that most text never reaches the tables. */
static bool ascii_alpha(uint32_t c) { return (c | 32) - 'a' < 26; }
static bool ascii_digit(uint32_t c) { return c - '0' < 10; }

/* The reference takes punctuation, accents and control characters from tables of Unicode 8.  These
 * came later and are none of the three there; made by comparing every code point
 * (tools/golden/tok.py --unicode). */
static const uint32_t newer[][2] = {
    {0x61D, 0x61D},     {0x7FD, 0x7FD},     {0x890, 0x891},     {0x898, 0x89F},
    {0x8CA, 0x8E2},     {0x9FD, 0x9FE},     {0xA76, 0xA76},     {0xAFA, 0xAFF},
    {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},     {0xC77, 0xC77},
    {0xC84, 0xC84},     {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},
    {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x180F, 0x180F},   {0x1885, 0x1886},
    {0x1ABF, 0x1ACE},   {0x1B7D, 0x1B7E},   {0x1DF6, 0x1DFB},   {0x2E43, 0x2E4F},
    {0x2E52, 0x2E5D},   {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},
    {0xA9BD, 0xA9BD},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAD}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F55, 0x10F59}, {0x10F82, 0x10F89}, {0x11070, 0x11070},
    {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x110CD, 0x110CD}, {0x111C9, 0x111C9},
    {0x111CF, 0x111CF}, {0x1123E, 0x1123E}, {0x11241, 0x11241}, {0x1133B, 0x1133B},
    {0x11438, 0x1143F}, {0x11442, 0x11444}, {0x11446, 0x11446}, {0x1144B, 0x1144F},
    {0x1145A, 0x1145B}, {0x1145D, 0x1145E}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
    {0x1182F, 0x11837}, {0x11839, 0x1183B}, {0x1193B, 0x1193C}, {0x1193E, 0x1193E},
    {0x11943, 0x11946}, {0x119D4, 0x119D7}, {0x119DA, 0x119DB}, {0x119E0, 0x119E0},
    {0x119E2, 0x119E2}, {0x11A01, 0x11A0A}, {0x11A33, 0x11A38}, {0x11A3B, 0x11A47},
    {0x11A51, 0x11A56}, {0x11A59, 0x11A5B}, {0x11A8A, 0x11A96}, {0x11A98, 0x11A9C},
    {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11C30, 0x11C36}, {0x11C38, 0x11C3D},
    {0x11C3F, 0x11C3F}, {0x11C41, 0x11C45}, {0x11C70, 0x11C71}, {0x11C92, 0x11CA7},
    {0x11CAA, 0x11CB0}, {0x11CB2, 0x11CB3}, {0x11CB5, 0x11CB6}, {0x11D31, 0x11D36},
    {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45}, {0x11D47, 0x11D47},
    {0x11D90, 0x11D91}, {0x11D95, 0x11D95}, {0x11D97, 0x11D97}, {0x11EF3, 0x11EF4},
    {0x11EF7, 0x11EF8}, {0x11F00, 0x11F01}, {0x11F36, 0x11F3A}, {0x11F40, 0x11F40},
    {0x11F42, 0x11F4F}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x13430, 0x13440},
    {0x13447, 0x13455}, {0x16E97, 0x16E9A}, {0x16F4F, 0x16F4F}, {0x16FE2, 0x16FE2},
    {0x16FE4, 0x16FE4}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46}, {0x1E000, 0x1E006},
    {0x1E008, 0x1E018}, {0x1E01B, 0x1E021}, {0x1E023, 0x1E024}, {0x1E026, 0x1E02A},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E944, 0x1E94A}, {0x1E95E, 0x1E95F}};

/* Sorted ranges, by bisection; only code points beyond ASCII get here. */
static bool is_newer(uint32_t cp)
{
    size_t lo = 0, hi = sizeof newer / sizeof *newer;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > newer[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof newer / sizeof *newer && cp >= newer[lo][0];
}

bool fv__is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* All of ASCII's non-alphanumerics count, as BERT has it: "$", "+" and "^" are symbols to
 * Unicode. */
bool fv__is_punct(uint32_t cp)
{
    if (cp < 0x80) return cp > 32 && cp < 127 && !ascii_alpha(cp) && !ascii_digit(cp);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    if (c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO) return !is_newer(cp);
    return cp == 0x166D || cp == 0x111C9; /* symbols since */
}

bool fv__is_numeric(uint32_t cp)
{
    if (cp < 0x80) return ascii_digit(cp);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool fv__is_mark(uint32_t cp)
{
    if (cp < 0x300) return false;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

bool fv__is_nonspacing(uint32_t cp)
{
    if (cp < 0x300) return false;
    if (utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_MN) return !is_newer(cp);
    return cp == 0x1734;
}

/* \w: Alphabetic, marks, decimal numbers, connectors, joiners.  Alphabetic is letters, letter
 * numbers and the circled letters. */
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
        return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
               (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
    default: return cp == 0x200C || cp == 0x200D;
    }
}

bool fv__is_control(uint32_t cp)
{
    if (cp < 0x80) return cp < 32 || cp == 127;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO) &&
           !is_newer(cp);
}

bool fv__is_cjk(uint32_t cp)
{
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
           (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B81F) ||
           (cp >= 0x2B920 && cp <= 0x2CEAF) || (cp >= 0xF900 && cp <= 0xFAFF) ||
           (cp >= 0x2F800 && cp <= 0x2FA1F);
}

uint32_t fv__lower(uint32_t cp)
{
    if (cp < 0x80) return cp - 'A' < 26 ? cp + 32 : cp;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

int fv__gpt_class(uint32_t cp)
{
    if (cp < 0x80)
        return ascii_alpha(cp)                      ? 1
               : ascii_digit(cp)                    ? 2
               : cp == ' ' || (cp >= 9 && cp <= 13) ? 3
                                                    : 0;
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
