//! Consistency conditions 1 to 4 of TPC-C clause 3.3.2.
//!
//! 1. W_YTD is the sum of the warehouse's D_YTD.
//! 2. D_NEXT_O_ID - 1 is the greatest O_ID, and the greatest NO_O_ID, of the district.
//! 3. The new-orders of a district have consecutive numbers.
//! 4. The sum of O_OL_CNT is the number of order-lines of the district.

use crate::database::engine::Database;
use crate::database::error::DbError;
use crate::database::load::DISTRICTS;
use crate::database::schema::{self, Table, district, orders, warehouse};
use pagetier::{Retention, SpaceHints};
use std::ops::ControlFlow;

/// Aggregates over the rows of one district.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct District {
    ytd: i64,
    next_order: u32,
    last_order: u32,
    lines_expected: u64,
    lines: u64,
    new_orders: u64,
    first_new_order: u32,
    last_new_order: u32,
}

/// Hints how long the pages that a check reads stay in memory.
pub(crate) fn hint(database: &Database, retention: Retention) -> Result<(), DbError> {
    let hints = SpaceHints::new().retention(retention);
    for table in [Table::Warehouse, Table::District, Table::Orders, Table::NewOrder, Table::OrderLine] {
        database.store.spaces().set_hints(database.tree(table).space(), hints)?;
    }
    Ok(())
}

/// Checks a database on which no transaction runs. Returns the first violated condition, in words.
pub(crate) async fn check(database: &Database) -> Result<Result<(), String>, DbError> {
    let mut warehouses = Vec::new();
    database
        .tree(Table::Warehouse)
        .visit(&schema::warehouse_key(1), |_, row| {
            warehouses.push(warehouse::YTD.int(row));
            ControlFlow::Continue(())
        })
        .await?;
    // The districts below are indexed by warehouse number: with a row missing, the last ones would be out
    // of bounds.
    if warehouses.len() != usize::from(database.catalog.scale.warehouses) {
        return Ok(Err(format!("{} warehouses of {}", warehouses.len(), database.catalog.scale.warehouses)));
    }
    let mut districts = vec![District::default(); warehouses.len() * usize::from(DISTRICTS)];
    read_districts(database, &mut districts).await?;
    Ok(judge(&warehouses, &districts))
}

async fn read_districts(database: &Database, districts: &mut [District]) -> Result<(), DbError> {
    scan(database, Table::District, districts, |district, _, row| {
        district.ytd = district::YTD.int(row);
        district.next_order = district::NEXT_O_ID.int(row) as u32;
    })
    .await?;
    scan(database, Table::Orders, districts, |district, o, row| {
        // Rows come in the order of their keys, so the last number seen is the greatest.
        district.last_order = o;
        district.lines_expected += orders::OL_CNT.int(row) as u64;
    })
    .await?;
    scan(database, Table::NewOrder, districts, |district, o, _| {
        if district.new_orders == 0 {
            district.first_new_order = o;
        }
        district.last_new_order = o;
        district.new_orders += 1;
    })
    .await?;
    scan(database, Table::OrderLine, districts, |district, _, _| district.lines += 1).await
}

/// Passes every row of a table whose keys begin with warehouse and district to a closure, with its district
/// and order number.
async fn scan(
    database: &Database,
    table: Table,
    districts: &mut [District],
    mut see: impl FnMut(&mut District, u32, &[u8]),
) -> Result<(), DbError> {
    let mut first = [0; 8];
    first[..3].copy_from_slice(&schema::district_key(1, 0));
    let see = |key: &[u8], row: &[u8]| {
        let w = usize::from(u16::from_be_bytes([key[0], key[1]]));
        let at = (w - 1) * usize::from(DISTRICTS) + usize::from(key[2]) - 1;
        let order = if key.len() >= 7 { schema::order_in(key) } else { 0 };
        see(&mut districts[at], order, row);
        ControlFlow::Continue(())
    };
    // A key of the table's own length: all begin with warehouse and district, and most go on.
    Ok(database.tree(table).visit(&first[..table.lens().0], see).await?)
}

fn judge(warehouses: &[i64], districts: &[District]) -> Result<(), String> {
    let per_warehouse = districts.chunks(usize::from(DISTRICTS));
    for (w, (&ytd, districts)) in (1..).zip(warehouses.iter().zip(per_warehouse)) {
        let sum: i64 = districts.iter().map(|district| district.ytd).sum();
        if ytd != sum {
            return Err(format!("condition 1: warehouse {w} has W_YTD {ytd}, its districts together {sum}"));
        }
        for (d, district) in (1..).zip(districts) {
            judge_district(district).map_err(|why| format!("{why} (warehouse {w}, district {d})"))?;
        }
    }
    Ok(())
}

fn judge_district(d: &District) -> Result<(), String> {
    // Wrapping, because a damaged row may hold 0, and a check has to report it, not to panic.
    let last = d.next_order.wrapping_sub(1);
    // A district whose orders are all delivered has no new-order to compare.
    if last != d.last_order || d.new_orders > 0 && last != d.last_new_order {
        let (o, no) = (d.last_order, d.last_new_order);
        return Err(format!(
            "condition 2: D_NEXT_O_ID - 1 is {last}, the last order {o}, the last new-order {no}"
        ));
    }
    let consecutive = u64::from(d.last_new_order.wrapping_sub(d.first_new_order)) + 1;
    if d.new_orders > 0 && consecutive != d.new_orders {
        let (first, last, n) = (d.first_new_order, d.last_new_order, d.new_orders);
        return Err(format!("condition 3: new-orders {first} to {last} are {n} rows"));
    }
    if d.lines_expected != d.lines {
        return Err(format!(
            "condition 4: O_OL_CNT adds up to {}, order-lines {}",
            d.lines_expected, d.lines
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: District = District {
        ytd: 7,
        next_order: 11,
        last_order: 10,
        lines_expected: 50,
        lines: 50,
        new_orders: 3,
        first_new_order: 8,
        last_new_order: 10,
    };

    #[test]
    fn each_violated_condition_is_noticed() {
        let sound = [SOUND; 20];
        assert_eq!(judge(&[70, 70], &sound), Ok(()));
        let broken = |change: fn(&mut District)| {
            let mut districts = sound;
            change(&mut districts[13]);
            judge(&[70, 70], &districts).unwrap_err()
        };
        assert!(broken(|d| d.ytd += 1).starts_with("condition 1: warehouse 2"));
        assert!(broken(|d| d.next_order += 1).starts_with("condition 2"));
        assert!(broken(|d| d.last_new_order -= 1).ends_with("(warehouse 2, district 4)"));
        assert!(broken(|d| d.first_new_order -= 1).starts_with("condition 3"));
        assert!(broken(|d| d.lines -= 1).starts_with("condition 4"));
    }

    #[test]
    fn a_district_with_everything_delivered_is_sound() {
        let empty = District { new_orders: 0, first_new_order: 0, last_new_order: 0, ..SOUND };
        assert_eq!(judge_district(&empty), Ok(()));
    }
}
