/* scripts.c - the pre-tokenizer UnicodeScripts as one pattern: runs of characters of one script.
 *
 * The reference walks over the characters and cuts where the script changes; Hiragana, Katakana and
 * the prolonged sound mark count as Han, and a space, as well as a character without a script,
 * belongs to the run before it.  What stands before the first run is dropped.  As a pattern,
 *
 *     \p{Latin}[\p{Latin} ANY]* | \p{Greek}[\p{Greek} ANY]* | ...
 *
 * it needs no table of our own: PCRE2 has the scripts of Unicode.  A table generated from
 * Scripts.txt lost: two thousand ranges that age with every version.  The reference's table is that
 * of Unicode 9; characters assigned since then have no script there, and have theirs here. */
#include <string.h>

#include "tok/json/load.h"

/* Those of the reference; the most common ones first, as alternatives are tried in order. */
/* clang-format off */
static const char *const scripts[] = {
    "Latin", "Cyrillic", "Arabic", "Devanagari", "Greek", "Hebrew", "Thai", "Hangul", "Inherited",
    "Adlam", "Ahom", "Anatolian_Hieroglyphs", "Armenian", "Avestan", "Balinese", "Bamum",
    "Bassa_Vah", "Batak", "Bengali", "Bhaiksuki", "Bopomofo", "Brahmi", "Braille", "Buginese",
    "Buhid", "Canadian_Aboriginal", "Carian", "Caucasian_Albanian", "Chakma", "Cham", "Cherokee",
    "Coptic", "Cuneiform", "Cypriot", "Deseret", "Duployan", "Egyptian_Hieroglyphs", "Elbasan",
    "Ethiopic", "Georgian", "Glagolitic", "Gothic", "Grantha", "Gujarati", "Gurmukhi", "Hanunoo",
    "Hatran", "Imperial_Aramaic", "Inscriptional_Pahlavi", "Inscriptional_Parthian", "Javanese",
    "Kaithi", "Kannada", "Kayah_Li", "Kharoshthi", "Khmer", "Khojki", "Khudawadi", "Lao",
    "Lepcha", "Limbu", "Linear_A", "Linear_B", "Lisu", "Lycian", "Lydian", "Mahajani",
    "Malayalam", "Mandaic", "Manichaean", "Marchen", "Meetei_Mayek", "Mende_Kikakui",
    "Meroitic_Cursive", "Meroitic_Hieroglyphs", "Miao", "Modi", "Mongolian", "Mro", "Multani",
    "Myanmar", "Nabataean", "New_Tai_Lue", "Newa", "Nko", "Ogham", "Ol_Chiki", "Old_Hungarian",
    "Old_Italic", "Old_North_Arabian", "Old_Permic", "Old_Persian", "Old_South_Arabian",
    "Old_Turkic", "Oriya", "Osage", "Osmanya", "Pahawh_Hmong", "Palmyrene", "Pau_Cin_Hau",
    "Phags_Pa", "Phoenician", "Psalter_Pahlavi", "Rejang", "Runic", "Samaritan", "Saurashtra",
    "Sharada", "Shavian", "Siddham", "SignWriting", "Sinhala", "Sora_Sompeng", "Sundanese",
    "Syloti_Nagri", "Syriac", "Tagalog", "Tagbanwa", "Tai_Le", "Tai_Tham", "Tai_Viet", "Takri",
    "Tamil", "Tangut", "Telugu", "Thaana", "Tibetan", "Tifinagh", "Tirhuta", "Ugaritic", "Vai",
    "Warang_Citi", "Yi",
};
/* clang-format on */

/* Without a script, to the reference: not assigned, or for private use. */
#define ANY "\\p{Cn}\\p{Co}"
#define HAN "\\p{Han}\\p{Hiragana}\\p{Katakana}\\x{30FC}"

fv_status fv__scripts_pattern(fv__pattern *out, fv_tok *t, fv_err *e)
{
    fv_buf b = {.env = t->env};
    char why[200] = "";
    bool no_memory = false;
    /* the sound mark and the space are Common in Unicode */
    fv__buf_str(&b, "[" HAN "][" HAN " " ANY "]*|(?![ \\x{30FC}])\\p{Common}"
                    "(?:(?!\\x{30FC})[\\p{Common}" ANY "])*");
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
        fv__buf_fmt(&b, "|\\p{%s}[\\p{%s} " ANY "]*", scripts[i], scripts[i]);
    fv__buf_str(&b, "|[^ " ANY "]"); /* of a younger script: nothing is lost */
    char *text = b.failed ? NULL : fv__pool_alloc(&t->pool, b.len + 1);
    if (text) memcpy(text, b.data, b.len);
    *out = (fv__pattern){.text = {text, b.len}, .regex = true};
    fv__buf_free(&b);
    if (text && fv__pattern_compile(out, t->env, why, sizeof why, &no_memory)) return FV_OK;
    return text && !no_memory ? fv_fail(e, FV_EMISSING, "UnicodeScripts: %s", why)
                              : fv_fail(e, FV_ENOMEM, "UnicodeScripts: out of memory");
}
