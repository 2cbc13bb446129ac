//! Parts of the policy `osml-plus` that can be left out, to see what each is worth.

use surefoot_server::settable::settings;

settings! {
    "osml-plus"

    /// 1: with it, 0: without.
    with: With {
        model_c: u32 = 1, 0..=1, "switch", "0: Model-C is not asked and not taught; a step is the one with the largest gain by Model-B and busy cores", Paper;
        jump_ups: u32 = 1, 0..=1, "switch", "0: who misses its target goes up by single steps alone, never to a new OAA at once", Sets;
        pre_deprivation: u32 = 1, 0..=1, "switch", "0: no neighbour gives to a newcomer that is only watched, but for the least", Sets;
    }
}
