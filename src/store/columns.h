/*-------------------------------------------------------------------------
 *
 * columns.h
 *	  Columns of a row in arrays "values" and "nulls", numbered from 1.
 *
 * For the files that turn rows into structs and back, which name their arrays
 * so.
 *
 * Copyright (c) 2026, leaselock contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEASELOCK_COLUMNS_H
#define LEASELOCK_COLUMNS_H

#define VALUE(column)		values[(column) - 1]
#define ISNULL(column)		nulls[(column) - 1]
#define TIME(column)		store_time_or_none(VALUE(column), ISNULL(column))

/* The value is not evaluated unless the column is set. */
#define SET_IF(condition, column, value) \
	do { \
		nulls[(column) - 1] = !(condition); \
		values[(column) - 1] = (condition) ? (value) : (Datum) 0; \
	} while (0)

#define SET(column, value)	SET_IF(true, column, value)
#define SET_TIME(column, time) \
	SET_IF((time) != NO_TIME, column, TimestampTzGetDatum(time))

#endif							/* LEASELOCK_COLUMNS_H */
