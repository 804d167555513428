//! Whether a point is on a NIST curve: y² = x³ - 3x + b mod p. All values are public, so constant time is not needed.

/// A number in 32-bit digits, lowest first.
type Number = Vec<u32>;

pub(super) struct Curve {
    p: Number,
    b: Number,
}

const P256: [&str; 2] = [
    "ffffffff00000001000000000000000000000000ffffffffffffffffffffffff",
    "5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b",
];
const P384: [&str; 2] = [
    "fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffeffffffff0000000000000000ffffffff",
    "b3312fa7e23ee7e4988e056be3f82d19181d9c6efe8141120314088f5013875ac656398d8a2ed19d2a85c8edd3ec2aef",
];
const P521: [&str; 2] = [
    "1ff\
     ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\
     ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "051\
     953eb9618e1c9a1f929a21a0b68540eea2da725b99b315f3b8b489918ef109e1\
     56193951ec7e937b1652c0bd3bb1bf073573df883d2c34f1ef451fd46b503f00",
];

impl Curve {
    /// The curve of this name, and its algorithm.
    pub(super) fn of(name: &str) -> Option<(Curve, &'static str)> {
        let (constants, algorithm) = match name {
            "P-256" => (P256, "ES256"),
            "P-384" => (P384, "ES384"),
            "P-521" => (P521, "ES512"),
            _ => return None,
        };
        let [p, b] = constants.map(from_hex);
        Some((Curve { p, b }, algorithm))
    }

    /// Coordinates are big-endian.
    pub(super) fn contains(&self, x: &[u8], y: &[u8]) -> bool {
        let (x, y) = (from_bytes(x), from_bytes(y));
        if !is_less(&x, &self.p) || !is_less(&y, &self.p) {
            return false;
        }
        // x³ + b = y² + 3x, to avoid subtraction.
        let cube = self.product(&self.product(&x, &x), &x);
        let left = self.reduced(sum(&cube, &self.b));
        let right = self.reduced(sum(&self.product(&y, &y), &sum(&x, &sum(&x, &x))));
        left == right
    }

    fn product(&self, left: &[u32], right: &[u32]) -> Number {
        let mut out = vec![0u32; left.len() + right.len() + 1];
        for (i, a) in left.iter().enumerate() {
            let mut carry = 0u64;
            for (j, digit) in out.iter_mut().skip(i).enumerate() {
                let b = right.get(j).copied().unwrap_or_default();
                let total = u64::from(*a) * u64::from(b) + u64::from(*digit) + carry;
                (*digit, carry) = split(total);
            }
        }
        self.reduced(out)
    }

    /// The remainder modulo p, bit by bit from the top.
    fn reduced(&self, number: Number) -> Number {
        let mut rest: Number = Vec::new();
        for digit in number.iter().rev() {
            for bit in (0..32).rev() {
                let mut carry = (digit >> bit) & 1;
                for digit in &mut rest {
                    let next = *digit >> 31;
                    *digit = *digit << 1 | carry;
                    carry = next;
                }
                if carry > 0 {
                    rest.push(carry);
                }
                if !is_less(&rest, &self.p) {
                    subtract(&mut rest, &self.p);
                }
            }
        }
        trimmed(rest)
    }
}

fn split(total: u64) -> (u32, u64) {
    #[expect(clippy::cast_possible_truncation, reason = "only the lower half is used")]
    let low = total as u32;
    (low, total >> 32)
}

fn sum(left: &[u32], right: &[u32]) -> Number {
    let digit = |number: &[u32], at: usize| u64::from(number.get(at).copied().unwrap_or_default());
    let mut carry = 0u64;
    let digits = (0..=left.len().max(right.len())).map(|at| {
        let (low, high) = split(digit(left, at) + digit(right, at) + carry);
        carry = high;
        low
    });
    digits.collect()
}

/// Subtracts a smaller number.
fn subtract(from: &mut Number, number: &[u32]) {
    let mut borrowed = false;
    for (at, digit) in from.iter_mut().enumerate() {
        let (once, first) = digit.overflowing_sub(number.get(at).copied().unwrap_or_default());
        let (twice, second) = once.overflowing_sub(u32::from(borrowed));
        (*digit, borrowed) = (twice, first || second);
    }
    *from = trimmed(std::mem::take(from));
}

fn is_less(left: &[u32], right: &[u32]) -> bool {
    let significant = |number: &[u32]| number.iter().rposition(|digit| *digit != 0).map_or(0, |at| at + 1);
    let (a, b) = (significant(left), significant(right));
    if a != b { a < b } else { left[..a].iter().rev().lt(right[..b].iter().rev()) }
}

fn trimmed(mut number: Number) -> Number {
    while number.last() == Some(&0) {
        number.pop();
    }
    number
}

fn from_bytes(bytes: &[u8]) -> Number {
    let piece = |chunk: &[u8]| chunk.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
    trimmed(bytes.rchunks(4).map(piece).collect())
}

fn from_hex(text: &str) -> Number {
    let digits: Vec<u8> =
        text.bytes().filter_map(|c| char::from(c).to_digit(16)).filter_map(|d| d.try_into().ok()).collect();
    let piece = |chunk: &[u8]| chunk.iter().fold(0u32, |number, digit| number << 4 | u32::from(*digit));
    trimmed(digits.rchunks(8).map(piece).collect())
}
