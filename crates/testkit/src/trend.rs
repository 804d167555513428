//! Lines through measured points, by least squares.

/// How much the second value grows for each unit of the first; `None` without two different first values.
pub fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let together: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let alone: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (alone > 0.0).then(|| together / alone)
}

/// The slope on logarithmic axes: 0 if the second value does not depend on the first, 1 if it is proportional. `None` if a
/// value is not positive.
pub fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let is_positive = points.iter().all(|(x, y)| *x > 0.0 && *y > 0.0);
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    slope(&logs).filter(|_| is_positive)
}

#[cfg(test)]
mod tests {
    use super::{exponent, slope};

    #[test]
    fn slope_of_a_line_with_noise() {
        assert_eq!(slope(&[(0.0, 1.0), (1.0, 4.0), (2.0, 5.0), (3.0, 8.0)]), Some(2.2));
        assert_eq!(slope(&[(1.0, 7.0)]), None);
        assert_eq!(slope(&[]), None);
    }

    #[test]
    fn exponent_of_a_power() {
        let square: Vec<(f64, f64)> = [10.0, 100.0, 500.0].map(|x| (x, 3.0 * x * x)).into();
        assert!((exponent(&square).unwrap_or_default() - 2.0).abs() < 1e-9);
        assert_eq!(exponent(&[(1.0, 0.0), (2.0, 3.0)]), None);
    }
}
