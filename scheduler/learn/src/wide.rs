//! The same loops with the vectors that this processor has.
//!
//! Only the width changes: each lane computes what it would alone, and nothing is fused or reordered that the code does not
//! fuse or reorder, so results have the same bits on every processor.

/// Define `$name`, which runs `$plain` compiled for AVX2 and fused multiply-add where the processor has them. What the body
/// calls must be `#[inline(always)]` to gain from it.
macro_rules! wide {
    ($(#[$doc:meta])* $vis:vis fn $name:ident / $plain:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        #[allow(clippy::too_many_arguments)]
        #[inline(always)]
        fn $plain($($arg: $ty),*) $body

        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        #[allow(unsafe_code, reason = "code for a processor that was asked for")]
        $vis fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn with_avx2($($arg: $ty),*) {
                    $plain($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has AVX2 and FMA.
                    return unsafe { with_avx2($($arg),*) };
                }
            }
            $plain($($arg),*)
        }
    };
}

pub(crate) use wide;
