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

#include "utils/builtins.h"

#include "compat.h"

#define VALUE(column)		values[(column) - 1]
#define ISNULL(column)		nulls[(column) - 1]
#define TIME(column)		store_time_or_none(VALUE(column), ISNULL(column))

/* The value is not evaluated unless the column is set. */
#define SET_IF(condition, column, value) \
	do { \
		nulls[(column) - 1] = !(condition); \
		values[(column) - 1] = (condition) ? (value) : (Datum) 0; \
	} while (0)

/* A text with the short header that it gets in a row anyway. */
typedef struct ShortText
{
	char		data[VARATT_SHORT_MAX];
} ShortText;

/* A text as a value to be stored; it is in *room if there is enough of it. */
static inline Datum
text_value(ShortText *room, const char *text)
{
	size_t		size = strlen(text) + VARHDRSZ_SHORT;

	if (size > sizeof(room->data))
		return CStringGetTextDatum(text);
	SET_VARSIZE_SHORT(room->data, size);
	memcpy(VARDATA_SHORT(room->data), text, size - VARHDRSZ_SHORT);
	return PointerGetDatum(room);
}

#define SET(column, value)	SET_IF(true, column, value)
#define SET_TIME(column, time) \
	SET_IF((time) != NO_TIME, column, TimestampTzGetDatum(time))

#endif							/* LEASELOCK_COLUMNS_H */
