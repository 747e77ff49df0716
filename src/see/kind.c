/* kind.c - which kind of map an attention is: by the role it carries, not by its name or its
 * family, so a new family is seen without a line here. */
#include "see/see.h"

static const char *const kind_names[] = {"encoder", "decoder", "cross"};

const char *fv_see_kind_name(fv_see_kind k)
{
    return (unsigned)k < FV_SEE_KINDS ? kind_names[k] : "?";
}

fv_see_kind fv__see_kind(const fv_attn_view *v)
{
    static const fv_see_kind kinds[] = {[FV_ATTN_SELF] = FV_SEE_ENCODER,
                                        [FV_ATTN_CAUSAL] = FV_SEE_DECODER,
                                        [FV_ATTN_CROSS] = FV_SEE_CROSS};
    return kinds[fv_attn_view_role(v)];
}
