//! What several command lines read alike.

use pagetier_policy::Costs;

/// Milliseconds of an SSD read, HDD read, SSD write and HDD write, as `0.11,7.2,0.27,4.96`.
///
/// # Errors
/// What was expected.
pub fn costs(text: &str) -> Result<Costs, String> {
    let numbers: Vec<f64> = text.split(',').map_while(|n| n.trim().parse().ok()).collect();
    match numbers[..] {
        [ssd_read_ms, hdd_read_ms, ssd_write_ms, hdd_write_ms]
            if text.split(',').count() == 4 && numbers.iter().all(|n| n.is_finite() && *n > 0.0) =>
        {
            Ok(Costs { hdd_read_ms, hdd_write_ms, ssd_read_ms, ssd_write_ms })
        }
        _ => Err("four numbers of milliseconds above 0, as 0.11,7.2,0.27,4.96".into()),
    }
}

/// A number from 0 to 100.
///
/// # Errors
/// What was expected.
pub fn percent(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "a number from 0 to 100".into())
}
